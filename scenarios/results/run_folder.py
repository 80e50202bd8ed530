"""The folder of a run, and the names of its charts.

The folder appears when all of its files are written, and no other run is overwritten silently.

Files are written into a hidden folder beside the final one and moved at the end. A run that is interrupted, or that
fails, leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from clustersim.simulator.reading.errors import SimulatorError

RESULT = "result.json"
"""The file that marks the folder of a run; it is moved last."""

WRITTEN = ("scenario.yaml", "spans.csv", "spans_*.csv", "jobs.csv", "jobs_*.csv")
"""Files of a run, beside `RESULT` and charts."""

WRITTEN_CHARTS = (
    "timeline",
    "pipeline",
    "memory",
    "breakdown",
    "links",
    "repeats",
    "critical",
    "states",
    "topology",
    "sweep",
    "queue",
)
"""Charts that `run` and `plot` write into the folder of a run."""

Write = Callable[[Path], Sequence[Path]]
"""A function that writes files into the folder that it is given, and returns their paths."""


def written_into(target: Path, write: Write, *, numbered: bool) -> tuple[list[Path], list[Path]]:
    """Return the paths in *target* of the files that *write* writes, and those of a former run that were removed.

    *numbered*: if *target* exists, take *target*-2, -3 ... instead. Else an existing folder is the user's choice: the
    files of a former run in it are removed, and all others stay. Raises `SimulatorError` if that is impossible.
    """
    try:
        with _staging(target, inside=not numbered and target.is_dir()) as folder:
            names = [path.relative_to(folder) for path in write(folder)]
            removed: list[Path] = []
            if numbered:
                target = _renamed(folder, target)
            elif target.is_dir():
                removed = [path for path in _former(target) if path.relative_to(target) not in names]
                _moved(folder, target, removed)
            else:
                folder.rename(target)
    except OSError as error:
        raise SimulatorError(f"cannot write {target}: {error.strerror or error}") from None
    return [target / name for name in names], removed


@contextmanager
def _staging(target: Path, *, inside: bool) -> Iterator[Path]:
    """Yield an empty folder on the file system of *target*; it and new empty parents are removed at the end.

    Errors of writing name *target*.
    """
    parent = target if inside else target.parent
    new = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=f".{target.name}-", dir=parent) as name:
            folder = Path(name) / target.name
            folder.mkdir()
            try:
                yield folder
            except SimulatorError as error:
                raise SimulatorError(str(error).replace(str(folder), str(target))) from None
    finally:
        for empty in new:
            with suppress(OSError):
                empty.rmdir()


def free_folder(target: Path) -> Path:
    """Return *target*, or the first of *target*-2, -3 ... that does not exist."""
    return next(name for name in _numbered(target) if not name.exists())


def _numbered(target: Path) -> Iterator[Path]:
    yield target
    yield from (target.with_name(f"{target.name}-{number}") for number in count(2))


def _renamed(folder: Path, target: Path) -> Path:
    """Rename *folder* to *target*, or to the first of *target*-2, -3 ... that does not exist; return the name."""
    while True:
        # another run may take the name at the same moment
        with suppress(FileExistsError, NotADirectoryError):
            return _without_overwriting(folder, free_folder(target))


def _without_overwriting(folder: Path, name: Path) -> Path:
    """Rename *folder* to *name*. Raises `FileExistsError` if *name* is there and not empty."""
    try:
        return folder.rename(name)
    except OSError as error:
        if name.exists():
            raise FileExistsError(str(name)) from error
        raise


def _former(folder: Path) -> list[Path]:
    """Return the files of a former run in *folder*; none if it does not hold a result."""
    if not (folder / RESULT).is_file():
        return []
    charts = [pattern for chart in WRITTEN_CHARTS for pattern in (f"{chart}.png", f"{chart}_*.png")]
    found = {path for pattern in (RESULT, *WRITTEN, *charts) for path in folder.glob(pattern) if path.is_file()}
    return sorted(found)


def _moved(folder: Path, target: Path, removed: Sequence[Path]) -> None:
    """Remove *removed*, and move the files of *folder* into *target*, the result last."""
    (target / RESULT).unlink(missing_ok=True)
    for path in removed:
        path.unlink(missing_ok=True)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == RESULT):
        path.replace(target / path.name)


CHARTS = (
    "timeline", "pipeline", "memory", "states", "breakdown", "links", "repeats", "critical", "operators", "topology",
    "sweep", "steps", "shared_links", "queue",
)  # fmt: skip
WITHOUT_RUN = ("activations",)
"""Charts of a scenario that is not simulated for them."""
OF_COLLECTIVES = ("steps",)
"""Charts that only a collective has."""
ONLY_OF_JOBS = ("shared_links",)
"""Charts that only several jobs have."""
OF_JOBS = ("timeline", "links", "topology", *ONLY_OF_JOBS)
"""Charts that several jobs together have."""
ONLY_OF_QUEUES = ("queue",)
"""Charts that only a queue has."""
OF_QUEUES = ("timeline", *ONLY_OF_QUEUES)
"""Charts that a queue has."""
OF_TRAINING = {
    "activations": "activations",
    "critical": "critical path",
    "memory": "chart of memory",
    "operators": "operators",
    "pipeline": "pipeline order",
}
"""Charts that only the training of a model has, and what it has."""
