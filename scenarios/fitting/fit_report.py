"""Cross-validation of a fit, and its report: parameters with uncertainty, errors of rows fitted and held out. Only
errors of rows that the fit has not seen are evidence of accuracy; errors of fitted rows are not.

Only these errors, of rows that the fit has not seen, are evidence of accuracy; errors of fitted rows are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from clustersim.scenarios.fitting.robust_fit import Fit, Parameter, Row
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.units import show
from clustersim.simulator.replay.calibration.robust_regression import Array

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


DIMENSIONS = {"s": "time", "bytes/s": "bandwidth"}
"""Dimensions of units that are printed with a prefix."""

FAR = 0.2
"""Rows with a larger relative error are listed."""


def fit_report(fit: Fit, held_out: Mapping[str, HeldOut]) -> str:
    """Return the report; *held_out*: errors of cross-validations by method."""
    whole = HeldOut(fit.rows, fit.errors())
    sections = [
        _parameters(fit),
        _errors("error on the fitted rows", whole),
        *(_errors(f"error on rows held out, {how}", errors) for how, errors in held_out.items()),
        *_far(whole),
    ]
    return "\n\n".join(sections)


def written(parameter: Parameter, value: float) -> str:
    """Return *value* of *parameter* with its unit."""
    dimension = DIMENSIONS.get(parameter.unit)
    return show(value, dimension) if dimension else f"{value:.4g} {parameter.unit}".strip()


def _parameters(fit: Fit) -> str:
    lines = [
        [p.name, written(p, fit.found[p.name]), f"+- {100 * fit.deviation(p.name):.1f} %", p.meaning]
        for p in fit.parameters
    ]
    return "parameters, with one standard deviation\n" + table(lines, align="lrrl")


def _errors(title: str, errors: HeldOut) -> str:
    header = ["", "rows", "mean", "median", "worst", "bias"]
    groups = dict.fromkeys(group for row in errors.rows for group in row.groups)
    parts = [(f"{group} {value}", part) for group in groups for value, part in errors.by(group).items()]
    return f"{title}, %\n" + table([_line(*one) for one in [("all", errors), *parts]], header, "lrrrrr")


def _line(name: str, errors: HeldOut) -> list[str]:
    bias = float(np.median(errors.errors))
    figures = (errors.mean, errors.median, errors.worst)
    return [name, str(len(errors.rows)), *(f"{100 * figure:.1f}" for figure in figures), f"{100 * bias:+.1f}"]


def _far(errors: HeldOut) -> Iterator[str]:
    lines = [
        [row.name, f"{100 * error:+.0f}"]
        for row, error in zip(errors.rows, errors.errors, strict=True)
        if abs(error) > FAR
    ]
    if lines:
        yield f"rows that the fit misses by more than {100 * FAR:.0f} %\n" + table(lines, align="lr")
