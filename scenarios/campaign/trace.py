"""A trace of failures: a CSV file with the times of failures in hours since the begin of the campaign."""

from __future__ import annotations

from math import isfinite

from simulator.comma_separated import read_rows
from simulator.errors import ScenarioError

COLUMN = "hours"


def failure_times(path: str) -> tuple[float, ...]:
    """Return the times of the file at *path* in s, ascending; none for an empty path.

    Raises `ScenarioError`, with the line, for a time that is no number above the one before.
    """
    if not path:
        return ()
    rows = list(read_rows(path))
    header = rows[0].cells if rows else []
    if COLUMN not in header:
        raise ScenarioError(f'{path}: needs a column "{COLUMN}": times of failures since the begin')
    place, found = header.index(COLUMN), [0.0]
    for row in rows[1:]:
        text = row.cells[place] if place < len(row.cells) else ""
        try:
            hours = float(text)
        except ValueError:
            hours = -1.0
        if not isfinite(hours) or hours * 3600.0 <= found[-1]:
            raise ScenarioError(f"{path}:{row.line}: {COLUMN} must be numbers above 0 that ascend, not {text}")
        found.append(hours * 3600.0)
    return tuple(found[1:])
