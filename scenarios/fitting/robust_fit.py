"""The fit of catalogue parameters to rows by robust least squares, with bounds and with knowledge from other sources.

Rows are few and predictions are expensive: each prediction may be a simulation. A step costs one prediction of each row
for each parameter that the row uses.

A parameter of a fit: a physical quantity with its start, its bounds and the places to which its value goes.

A row of a fit: one measurement, and its prediction as a function of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, isfinite, log

import numpy as np

from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.calibration.robust_regression import NORMAL_MAD, Array, RobustProblem

Values = Mapping[str, float]
"""The value of each parameter by its name."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The positive quantity *name* in *unit*; the fit begins at *start* and stays between *low* and *high*.

    *meaning* is a sentence for a reader of the fit. *lands*: the places to which the value goes, each
    ``package.file:key``. *spread*: one standard deviation of the logarithm about *start*, known from sources other than
    the rows (0.1 is a tenth); None if nothing is known. *family*: parameters that are the same quantity on other
    machines; where no row informs one of them, the others do.
    """

    name: str
    start: float
    low: float
    high: float
    unit: str
    meaning: str
    lands: tuple[str, ...] = ()
    spread: float | None = None
    family: str = ""

    def inner(self, value: float) -> float:
        """Return the number that the fit changes: the logarithm of *value*.

        >>> Parameter("share", 0.5, 0.1, 1.0, "", "a share").inner(1.0)
        0.0
        """
        return log(value)

    def outer(self, inner: float) -> float:
        """Return the value of the number that the fit changes; never beyond the bounds."""
        return min(max(exp(inner), self.low), self.high)


@dataclass(frozen=True, eq=False)
class Row:
    """The *measured* value, and *predicted*: parameter values -> prediction. Both are above 0 and in one unit.

    *groups*: the groups of the report to which the row belongs, such as ``{"data": "sc21", "tp": 8}``. *uses*: the
    names of the parameters on which the prediction depends (empty: all); it is cached while others change. *noise*: the
    relative error of the measurement, by which the row is weighed. *nearby*, for expensive predictions: (values, base)
    -> the prediction at *values* over that at *base*, to first order, for slopes only.
    """

    name: str
    measured: float
    predicted: Callable[[Values], float]
    groups: Mapping[str, str | int] = field(default_factory=dict)
    uses: frozenset[str] = frozenset()
    noise: float = 0.03
    nearby: Callable[[Values, Values], float] | None = None
    _known: dict[tuple[float, ...], float] = field(init=False, repr=False, default_factory=dict)

    def at(self, values: Values) -> float:
        """Return the prediction. Raises `CalibrationError` if it is not a positive number."""
        key = tuple(value for name, value in sorted(values.items()) if not self.uses or name in self.uses)
        if key not in self._known:
            value = self.predicted(values)
            if not (isfinite(value) and value > 0):
                raise CalibrationError(f"{self.name}: predicted {value}, which is no positive number")
            self._known[key] = value
        return self._known[key]

    def given(self, fixed: Values) -> Row:
        """Return the row with the values *fixed* added to those that it is predicted by."""
        if not fixed:
            return self
        nearby = self.nearby
        return replace(
            self,
            predicted=lambda values: self.at({**fixed, **values}),
            nearby=nearby and (lambda values, base: nearby({**fixed, **values}, {**fixed, **base})),
        )

    def error(self, values: Values) -> float:
        """Return predicted / measured - 1."""
        return self.at(values) / self.measured - 1.0

    def slope(self, values: Values, base: Values) -> float:
        """Return the residual at *values* minus that at *base*."""
        if self.nearby is None:
            return self.residual(values) - self.residual(base)
        return log(self.nearby(values, base)) / self.noise

    def residual(self, values: Values) -> float:
        """Return log(predicted / measured) in units of the noise: twice as slow weighs as much as twice as fast."""
        return log(self.at(values) / self.measured) / self.noise


HUBER = 1.345
"""Huber's bound in standard deviations: 95 % efficiency under normal noise (Huber 1981, "Robust Statistics", 4.5)."""

DIFFERENCE = 1e-2
"""Step of the finite differences: above the grain of tiles and of the tuner's choices, below curvature."""

TOLERANCE = 1e-3
"""A step that lowers the loss by less than this share ends the search."""

SMALLEST_STEP = 1e-4
"""A step that changes all parameters by less than this ends the search."""

EVALUATIONS = 40
"""Points at which all rows are predicted, at most, for one scale of the residuals; those for slopes not counted."""


@dataclass(frozen=True)
class Fit:
    """The values *found* for *parameters* by *rows*.

    *covariance* (k x k) is that of the inner numbers (logarithms), in the order of *parameters*. *slopes* (n x k) are
    the derivatives of the residuals by them.
    """

    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...]
    found: dict[str, float]
    covariance: Array
    slopes: Array

    def deviation(self, name: str) -> float:
        """Return one standard deviation of the logarithm of the parameter *name*: its relative uncertainty."""
        place = [parameter.name for parameter in self.parameters].index(name)
        return float(self.covariance[place, place] ** 0.5)

    def errors(self) -> Array:
        """Return predicted / measured - 1 of each row."""
        return np.array([row.error(self.found) for row in self.rows])

    def without(self, left_out: Sequence[int]) -> dict[str, float]:
        """Return all parameters' values as fitted to the other rows, to first order: one Gauss-Newton step."""
        model = _Model(self.parameters, self.rows)
        problem = model.problem()
        at = model.inner(self.found)
        residuals = model.residuals(at)
        weights = problem.weights(residuals)
        weights[list(left_out)] = 0.0
        curvature = self.slopes.T @ (weights[:, None] * self.slopes) + np.diag(problem.precision**2)
        gradient = self.slopes.T @ (weights * residuals) + problem.precision**2 * (at - problem.expected)
        return model.values(at - np.linalg.pinv(curvature) @ gradient)


def least_squares(parameters: Sequence[Parameter], rows: Sequence[Row], begin: Values | None = None) -> Fit:
    """Return the values of *parameters* with the least robust loss of *rows*.

    The search starts at *begin*, values of a former fit, or at the starts of the parameters. Raises `CalibrationError`
    if there are no rows.
    """
    if not rows:
        raise CalibrationError(f"no rows to fit {', '.join(p.name for p in parameters)} to")
    model = _Model(tuple(parameters), tuple(rows))
    problem = model.problem()
    start = problem.expected if begin is None else model.inner(begin)
    at = problem.minimum(start, TOLERANCE, SMALLEST_STEP, EVALUATIONS)
    values, slopes = model.values(at), model.slopes(at)
    covariance = _covariance(problem, model.residuals(at), slopes)
    return Fit(model.parameters, model.rows, values, covariance, slopes)


@dataclass(frozen=True)
class _Model:
    """The residuals of *rows* as functions of a point: the inner numbers of *parameters*."""

    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...]

    def problem(self) -> RobustProblem:
        """The problem that is to be minimised."""
        return RobustProblem(
            self.residuals,
            self.slopes,
            _scale,
            HUBER,
            expected=self.inner({p.name: p.start for p in self.parameters}),
            precision=np.array([0.0 if p.spread is None else 1.0 / p.spread for p in self.parameters]),
            relative=False,
            low=self.inner({p.name: p.low for p in self.parameters}),
            high=self.inner({p.name: p.high for p in self.parameters}),
        )

    def inner(self, values: Values) -> Array:
        """Return the point with *values*."""
        return np.array([p.inner(values[p.name]) for p in self.parameters])

    def values(self, at: Array) -> dict[str, float]:
        """Return the values at the point *at*, within the bounds of their parameters."""
        return {p.name: p.outer(float(inner)) for p, inner in zip(self.parameters, at, strict=True)}

    def residuals(self, at: Array) -> Array:
        """Return the residuals of the rows in units of their noise."""
        values = self.values(at)
        return np.array([row.residual(values) for row in self.rows])

    def slopes(self, at: Array) -> Array:
        """Return the derivatives of the residuals (n x k) by forward differences; backward at an upper bound."""
        columns, base = [], self.values(at)
        for place, parameter in enumerate(self.parameters):
            backward = parameter.outer(float(at[place]) + DIFFERENCE) >= parameter.high
            step = -DIFFERENCE if backward else DIFFERENCE
            moved = at.copy()
            moved[place] += step
            values = self.values(moved)
            columns.append(np.array([row.slope(values, base) for row in self.rows]) / step)
        return np.array(columns).T


def _covariance(problem: RobustProblem, residuals: Array, slopes: Array) -> Array:
    """Return the inverse curvature; the part of the rows is scaled by the variance of their residuals."""
    weights = problem.weights(residuals)
    rows, parameters = slopes.shape
    variance = max(1.0, float(np.sum(weights * residuals**2)) / max(1, rows - parameters))
    curvature = slopes.T @ (weights[:, None] * slopes) / variance + np.diag(problem.precision**2)
    return np.asarray(np.linalg.pinv(curvature))


def _scale(residuals: Array) -> float:
    """Return the robust standard deviation about 0, at least 1: that of the noise."""
    return max(1.0, NORMAL_MAD * float(np.median(np.abs(residuals))))
