"""The table of a sweep as a file: CSV, compressed CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from scenarios.sweep.rows import Scalar
from simulator.analysis.files import suffix_of
from simulator.analysis.spans import check_pyarrow
from simulator.files import check_writable, written

SUFFIXES = (".csv", ".csv.gz", ".parquet")

Table = Sequence[Mapping[str, Scalar]]


def check(path: Path) -> None:
    """Raise `SimulatorError` if a table cannot be written to *path*: its suffix, its folder, or pyarrow is missing."""
    if suffix_of(path, SUFFIXES) == ".parquet":
        check_pyarrow(path)
    check_writable(path)


def write(columns: Sequence[str], table: Table, path: Path) -> None:
    """Write *table* to *path*, whole or not at all; a cell without a value is empty. Raises `SimulatorError`."""
    suffix = suffix_of(path, SUFFIXES)
    if suffix == ".parquet":
        check_pyarrow(path)
    with written(path) as beside:
        if suffix == ".parquet":
            _parquet(columns, table, beside)
        elif suffix == ".csv.gz":
            # without name and date the same table gives the same bytes
            with beside.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
                file.write(_csv(columns, table))
        else:
            beside.write_bytes(_csv(columns, table))


def _csv(columns: Sequence[str], table: Table) -> bytes:
    """Return *table* as CSV (RFC 4180); numbers have all their digits, and truth values are True and False."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().encode()


def _parquet(columns: Sequence[str], table: Table, path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({column: _column(column, table) for column in columns}), str(path))


def _column(column: str, table: Table) -> list[Scalar]:
    """Return the cells of *column*; of several types they are text, because a column of Parquet has one type."""
    cells = [row[column] for row in table]
    kinds = {float if type(cell) is int else type(cell) for cell in cells if cell is not None}
    if len(kinds) > 1:
        return [None if cell is None else str(cell) for cell in cells]
    return [float(cell) if float in {type(one) for one in cells} and type(cell) is int else cell for cell in cells]
