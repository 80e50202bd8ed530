"""Cross-validation fits all rows but one part, predicts that part, and goes on until each row was left out once.

What it says of rows that the fit has not seen is what may be claimed; the error on fitted rows is no evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scenarios.fitting.least_squares import Fit
from scenarios.fitting.row import Row
from simulator.least_squares import Array

FOLDS = 5


@dataclass(frozen=True)
class HeldOut:
    """*errors*: predicted over measured, less 1, of each of *rows* by the fit that had not seen it."""

    rows: tuple[Row, ...]
    errors: Array

    @property
    def median(self) -> float:
        """Of the absolute errors."""
        return float(np.median(np.abs(self.errors)))

    @property
    def mean(self) -> float:
        """Of the absolute errors."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return float(np.max(np.abs(self.errors)))

    def by(self, group: str) -> dict[str | int, HeldOut]:
        """The rows of each value of *group*, those without it left out."""
        parts: dict[str | int, list[int]] = {}
        for place, row in enumerate(self.rows):
            if group in row.groups:
                parts.setdefault(row.groups[group], []).append(place)
        return {
            value: HeldOut(tuple(self.rows[p] for p in places), self.errors[places])
            for value, places in sorted(parts.items(), key=lambda item: (str(type(item[0])), item[0]))
        }


def cross_validated(fit: Fit, part_of: Callable[[int, Row], object] = lambda number, _: number % FOLDS) -> HeldOut:
    """The rows of *fit*, each predicted without its part; *part_of* (number, row) says which that is.

    The fit of the rest is one step of Gauss and Newton from the whole one, whose slopes are known; what it finds is put
    to the rows left out as it is, not along the slopes.
    """
    parts: dict[object, list[int]] = {}
    for number, row in enumerate(fit.rows):
        parts.setdefault(part_of(number, row), []).append(number)
    errors = np.zeros(len(fit.rows))
    for places in parts.values():
        values = fit.without(places)
        errors[places] = [fit.rows[place].error(values) for place in places]
    return HeldOut(fit.rows, errors)
