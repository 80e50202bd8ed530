"""Scenarios as files of other programs: launch files, pipeline orders, traces, topologies. One target a file.

A target is a file of this folder with a function of its name, ``def x(scenario) -> Export``; files that begin with
``_`` and folders are no targets. ``--to torch-csv`` is `torch_csv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import check_writable, written
from clustersim.simulator.reading.lookup import UnknownName, function, names
from clustersim.simulator.reading.validation import near

PACKAGE = "clustersim.scenarios.exchange.exporting"

Content = str | bytes | Callable[[Path], None]
"""The content of a file, or a function that writes it to a path."""


@dataclass(frozen=True)
class Export:
    """What a target makes of a scenario: *files*, content by name, and *notes* on what it cannot say there.

    *folder*: True if the files lie in a folder of their own even if there is only one.
    """

    files: Mapping[str, Content]
    notes: tuple[str, ...] = ()
    folder: bool = False

    @property
    def in_folder(self) -> bool:
        """True if the files lie in a folder of their own."""
        return self.folder or len(self.files) > 1


def targets() -> list[str]:
    """Return the names of the targets, as the command line has them."""
    return [name.replace("_", "-") for name in names(PACKAGE)]


def exporter(target: str) -> Callable[[Scenario], Export]:
    """Return the function of *target*. Raises `ScenarioError` with the targets for an unknown one."""
    try:
        return function(PACKAGE, target.replace("-", "_"))
    except UnknownName:
        hint = near(target, targets())
        message = f"--to {target[:60]}: unknown target; there are {', '.join(targets())}"
        raise ScenarioError(f"{message}\n     help: {hint}" if hint else message) from None


def write(export: Export, path: Path | None) -> list[Path]:
    """Write the files of *export* and return their paths.

    *path*: the file, or the folder if the export has several files; None: their own names in the working directory, or
    in a folder ``export`` there. Every file is written whole or not at all.
    """
    folder = (path or Path("export")) if export.in_folder else Path()
    paths = [folder / name if export.in_folder else path or Path(name) for name in export.files]
    if export.in_folder and folder.exists() and not folder.is_dir():
        raise ScenarioError(f"{folder} is a file; several files are written: give a folder")
    for target in paths:
        check_writable(target)
    for target, content in zip(paths, export.files.values(), strict=True):
        with written(target) as beside:
            if isinstance(content, str):
                beside.write_text(content, encoding="utf-8")
            elif isinstance(content, bytes):
                beside.write_bytes(content)
            else:
                content(beside)
    return paths
