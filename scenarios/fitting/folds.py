"""Cross-validation: the rows are divided into parts, and each part is predicted by a fit of all other parts.

Only these errors, of rows that the fit has not seen, are evidence of accuracy; errors of fitted rows are not.
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
    """*errors* (n): predicted / measured - 1 of each of *rows*, by a fit without that row."""

    rows: tuple[Row, ...]
    errors: Array

    @property
    def median(self) -> float:
        """Median of the absolute errors."""
        return float(np.median(np.abs(self.errors)))

    @property
    def mean(self) -> float:
        """Mean of the absolute errors."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return float(np.max(np.abs(self.errors)))

    def by(self, group: str) -> dict[str | int, HeldOut]:
        """Return the rows of each value of *group*; rows without the group are left out."""
        parts: dict[str | int, list[int]] = {}
        for place, row in enumerate(self.rows):
            if group in row.groups:
                parts.setdefault(row.groups[group], []).append(place)
        return {
            value: HeldOut(tuple(self.rows[p] for p in places), self.errors[places])
            for value, places in sorted(parts.items(), key=lambda item: (str(type(item[0])), item[0]))
        }


def cross_validated(fit: Fit, part_of: Callable[[int, Row], object] = lambda number, _: number % FOLDS) -> HeldOut:
    """Return the errors of the rows of *fit*, each by a fit without its part; *part_of*: (number, row) -> part.

    The fit without a part is one Gauss-Newton step from the whole fit. Its parameters then predict the part's rows in
    full, not along the slopes.
    """
    parts: dict[object, list[int]] = {}
    for number, row in enumerate(fit.rows):
        parts.setdefault(part_of(number, row), []).append(number)
    errors = np.zeros(len(fit.rows))
    for places in parts.values():
        values = fit.without(places)
        errors[places] = [fit.rows[place].error(values) for place in places]
    return HeldOut(fit.rows, errors)
