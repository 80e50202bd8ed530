"""Folders as registries: a name finds the function or the data file of that name. The only use of importlib.

A dotted name is an import path of the user's own, ``mylab.orders.wave`` (the function ``wave`` of that module, or the
data file ``wave.yaml`` in the package ``mylab.orders``); a name that ends with ``.yaml`` or ``.json`` is the path of a
file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from clustersim.simulator.reading.errors import SimulatorError

OWN = __name__.partition(".")[0]
"""This package."""

MOST_TOLD = 40
"""Names that a message tells at most."""


class UnknownName(SimulatorError):  # noqa: N818 - it names the fault
    """No file of that name; `names`: the existing ones, nearest first."""

    def __init__(self, name: str, names: list[str]) -> None:
        self.name, self.names = name, names
        super().__init__(f'unknown name "{name}"; there are: {", ".join(names)}')


def names(package: str) -> list[str]:
    """Return the names in *package* (a dotted path): its files, sorted, without those that begin with ``_``."""
    return sorted({file.rpartition(".")[0] for _, file in _named(package)})


def function(package: str, name: str) -> Callable[..., Any]:
    """Return the function *name* of the file *name* in *package*, or of the user's module if *name* is dotted.

    Raises `UnknownName` with the existing names, nearest first.
    """
    module = find(package, name)
    if isinstance(module, Path):
        raise UnknownName(name, nearest(name, names(package)))
    attribute = getattr(module, name.rpartition(".")[2], None)
    if not callable(attribute):
        raise SimulatorError(f"{module.__name__} has no function {name.rpartition('.')[2]}")
    return attribute  # type: ignore[no-any-return]


def module(name: str) -> ModuleType:
    """Return the module of that dotted name."""
    return importlib.import_module(name)


def attribute(function: Callable[..., Any], name: str) -> Any:
    """Return the attribute *name* of the module of *function*; None if there is none."""
    return getattr(module(function.__module__), name, None)


def attribute_of(package: str, name: str, attribute: str) -> Any:
    """Return the *attribute* of the file *name* of *package*, or of the user's module *name*; None if it has none."""
    return getattr(find(package, name), attribute, None)


def installed(name: str) -> bool:
    """Return whether there is a module of that name; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def loaded(name: str) -> bool:
    """Return whether the module of that name has been imported."""
    return name in sys.modules


def version(distribution: str = "clustersim") -> str:
    """Return the version of *distribution* that is installed; empty if it is not."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def data_file(package: str, name: str) -> Path:
    """Return the path of ``name.yaml`` in *package*, or in the user's package if *name* is dotted, or *name* itself."""
    path = find(package, name)
    if not isinstance(path, Path):
        raise UnknownName(name, nearest(name, names(package)))
    return path


def find(package: str, name: str) -> Any:
    """Return the imported module, or the `Path` of the data file, called *name*. Raises `UnknownName`."""
    if is_path(name) and Path(name).is_file():
        return Path(name)
    home, _, stem = name.rpartition(".")
    own = [] if stem.startswith("_") else [f"{stem}.py", f"{stem}.yaml"]
    for folder in sorted(_folders(home or package)):
        # not `Path.exists`: where letters of either case are equal, a name must still be that of the file
        there = _entries(folder)
        if file := next((one for one in own if one in there), ""):
            return module(f"{home or package}.{stem}") if file == own[0] else Path(folder) / file
    raise UnknownName(name, nearest(name, names(package)))


def plain(package: str, name: str) -> str:
    """Return the name of a file of *package* that is given by its import path; any other *name* as it is.

    >>> gpus = "clustersim.topologies.gpus"
    >>> plain(gpus, f"{gpus}.v100_16gb"), plain(gpus, "mylab.gpus.x")
    ('v100_16gb', 'mylab.gpus.x')
    """
    home, _, stem = name.rpartition(".")
    return stem if home == package and not is_path(name) and stem in names(package) else name


def is_path(name: str) -> bool:
    """Return whether *name* is the path of a data file."""
    return name.endswith((".yaml", ".yml", ".json"))


def nearest(name: str, candidates: list[str]) -> list[str]:
    """Return *candidates*, those most similar to *name* first."""
    import difflib

    return sorted(candidates, key=lambda c: -difflib.SequenceMatcher(None, name.lower(), c.lower()).ratio())


def told(names: list[str]) -> str:
    """Return *names* for a message; the first ten of very many.

    >>> told(["dgx1", "dgx2"])
    'dgx1, dgx2'
    """
    if len(names) <= MOST_TOLD:
        return ", ".join(names)
    return f"{', '.join(names[:10])} and {len(names) - 10} more (clustersim list)"


def files(package: str) -> list[Path]:
    """Return the paths of the files of *package*, sorted, without those that begin with ``_``."""
    return sorted(Path(folder) / file for folder, file in _named(package))


def _named(package: str) -> list[tuple[str, str]]:
    """Return (folder, name) of each of the `files` of *package*, sorted."""
    return sorted(_listed(package))


def _listed(package: str) -> list[tuple[str, str]]:
    """Return (folder, name) of each of the `files` of *package*."""
    return [
        (folder, name)
        for folder in _folders(package)
        for name in _entries(folder)
        if name.endswith((".py", ".yaml")) and not name.startswith("_")
    ]


SETTLED = 2.0
"""Seconds after the last change of a folder from which on the next one shows in its time; FAT counts in two seconds."""


def _entries(folder: str) -> Sequence[str]:
    """Return the names of the files in *folder*: they are listed again if one may be new."""
    changed = Path(folder).stat().st_mtime
    return (_listing if time.time() - changed > SETTLED else _listing.__wrapped__)(folder, changed)


@cache
def _listing(folder: str, changed: float) -> Sequence[str]:
    """Return the names of the files in *folder*, which was last changed at that time."""
    return os.listdir(folder)  # noqa: PTH208 - a path for each file takes ten times as long


def _folders(package: str) -> Sequence[str]:
    """Return the folders of *package*; none if there is no such package."""
    if package in sys.modules:
        return tuple(getattr(sys.modules[package], "__path__", ()))
    home, _, _ = package.rpartition(".")
    if home == OWN or home.startswith(f"{OWN}."):
        return _own_folders(package, _folders(home))
    return _found_folders(package)


@cache
def _own_folders(package: str, above: Sequence[str]) -> Sequence[str]:
    """Return the folders of a *package* of this one that lie in those *above* it: they stay where they are."""
    return _found_folders(package) if above else ()


def _found_folders(package: str) -> Sequence[str]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ()
    return tuple(spec.submodule_search_locations or ()) if spec is not None else ()
