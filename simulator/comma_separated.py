"""Tables of comma-separated values, read with the place of each row."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from simulator.files import UnreadableFile, read_text

LARGEST = 64 * 2**20
"""Bytes of a table at most."""


@dataclass(frozen=True)
class TableRow:
    """The *cells* of a row, the number of the *line* that it ends in, and the *text* of that line."""

    line: int
    text: str
    cells: list[str]


def read_rows(path: str | os.PathLike[str]) -> Iterator[TableRow]:
    """Yield the rows of the table at *path* that are not empty; the header is the first.

    Raises `UnreadableFile` for a file that is no table, and for a column that the header has twice.
    """
    lines = list(StringIO(read_text(path, LARGEST), newline=""))
    reader = csv.reader(lines, strict=True)
    try:
        for number, cells in enumerate(filter(None, reader)):
            if number == 0:
                _check_header(path, cells)
            yield TableRow(reader.line_num, lines[reader.line_num - 1].rstrip("\r\n"), cells)
    except csv.Error as error:
        reason = f"is no table of comma-separated values: {error}"
        raise UnreadableFile(path, reason, line=reader.line_num) from None


def _check_header(path: str | os.PathLike[str], columns: Sequence[str]) -> None:
    for column in columns:
        if columns.count(column) > 1:
            raise UnreadableFile(path, f'the header has the column "{column}" twice', line=1)
