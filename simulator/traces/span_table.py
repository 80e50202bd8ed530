"""The spans of a timeline as a table in a file: CSV, compressed CSV or Parquet."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.timeline import TABLE, Timeline, op_names, op_streams
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of, written

AT_ONCE = 50_000
"""Rows that are converted to text at a time."""


def count(timeline: Timeline) -> int:
    """Return the number of rows of the table: the spans of all representatives."""
    return sum(len(own.op) for own in timeline.columns.values())


def write(timeline: Timeline, path: Path | str) -> None:
    """Write a row for each span to *path*, a ``.csv``, ``.csv.gz`` or ``.parquet``; `Timeline.table` has the columns.

    Times are in s: from ready to begin the op waited for its partners, from begin to end it ran. Equal ranks have one
    set of rows, that of the first; *ranks* is their number. Raises `SimulatorError` for another suffix, if the file
    cannot be written, and for Parquet if pyarrow is not installed.
    """
    path = Path(path)
    write_form = FORMS[suffix_of(path, FORMS)]
    if write_form is _parquet:
        check_pyarrow(path)
    with written(path) as beside:
        write_form(timeline, beside)


def _csv(timeline: Timeline, path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(_lines(timeline))


def _compressed(timeline: Timeline, path: Path) -> None:
    # without name and date the same timeline gives the same bytes; level 3 takes a third of the time of level 9
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 3, raw, mtime=0) as file:
        file.writelines(_lines(timeline))


def _lines(timeline: Timeline) -> Iterator[bytes]:
    """Yield the lines of the CSV file, `AT_ONCE` at a time."""
    yield (",".join(TABLE) + "\n").encode()
    known: dict[int, npt.NDArray[Any]] = {}
    for rank, ranks in timeline.classes.items():
        number, own = timeline.schedule.program_of[rank], timeline.columns[rank]
        program = timeline.schedule.programs[number]
        if number not in known:
            pairs = zip(op_names(program), op_streams(program).tolist(), strict=True)
            known[number] = np.array([f"{_quoted(name)},{_quoted(stream)}" for name, stream in pairs], object)
        head = f"{rank},{len(ranks)},"
        for first in range(0, len(own.op), AT_ONCE):
            op, *numbers = (column[first : first + AT_ONCE] for column in own)
            step, ready, begin, end, communication = (column.tolist() for column in numbers)
            rows = zip(step, known[number][op].tolist(), ready, begin, end, communication, strict=True)
            yield "".join([f"{head}{s},{what},{r!r},{b!r},{e!r},{c}\n" for s, what, r, b, e, c in rows]).encode()


def _quoted(text: str) -> str:
    """Return *text* as a field of a CSV file (RFC 4180)."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


def check_pyarrow(path: Path) -> None:
    """Raise `SimulatorError` if pyarrow, which writes the .parquet file *path*, is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise SimulatorError(
            f"{path}: a .parquet file needs pyarrow, which is not installed: pip install pyarrow, or write .csv.gz"
        ) from None


def _parquet(timeline: Timeline, path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(timeline.table()), str(path))


FORMS: dict[str, Callable[[Timeline, Path], None]] = {".csv": _csv, ".csv.gz": _compressed, ".parquet": _parquet}
"""The forms of a table by the suffix of its file."""
