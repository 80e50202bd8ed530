"""Write the API reference from what the packages offer: every name of their ``__all__``, by the module that defines it.

`docs/conf.py` calls `page` at build time; Sphinx's autodoc fills in docstrings and signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

TITLE = "# API reference\n\nWhat scripts and notebooks import. Every other module may change between versions."

PACKAGES = {
    "scenarios": ("Scenarios, their runs and their results.", ()),
    "topologies": ("Clusters.", ("cluster",)),
    "workloads": ("Models.", ("specification.model", "model.Model", "model.Layer")),
    "simulator": ("Schedules, clusters, timelines, and the engine that runs the first on the second.", ()),
}
"""What a package is for, and its names where it has no ``__all__``."""

MEMBERS = {"Scenario": "load, model_validate, cluster, schedule, run, sweep"}
"""The members of a class that are documented, where these are not all."""


def page() -> str:
    """Return the reference as one MyST Markdown page."""
    parts = [TITLE]
    for package, (purpose, _) in PACKAGES.items():
        found = dict(_offered(package))
        parts += [f"## {package}", purpose, _block([".. autosummary::", "", *(f"   ~{name}" for name in found)])]
        parts += [_block(_directive(name, thing)) for name, thing in found.items()]
    return "\n\n".join(parts) + "\n"


def _offered(package: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, class or function) of what *package* offers, ordered by defining module."""
    module = import_module(package)
    names = getattr(module, "__all__", None) or PACKAGES[package][1]
    things = {f"{package}.{name}": _found(package, name) for name in names}
    yield from sorted(things.items(), key=lambda item: (item[1].__module__, item[0]))


def _found(package: str, name: str) -> Any:
    home, _, attribute = f"{package}.{name}".rpartition(".")
    return getattr(import_module(home), attribute)


def _directive(name: str, thing: Any) -> list[str]:
    if not inspect.isclass(thing):
        return [f".. autofunction:: {name}"]
    kind = "autoexception" if issubclass(thing, Exception) else "autoclass"
    return [f".. {kind}:: {name}", f"   :members: {MEMBERS.get(thing.__name__, '')}".rstrip()]


def _block(lines: list[str]) -> str:
    return "\n".join(["```{eval-rst}", *lines, "```"])
