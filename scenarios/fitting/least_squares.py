"""The fit of catalogue parameters to rows by robust least squares, with bounds and with knowledge from other sources.

Rows are few and predictions are expensive: each prediction may be a simulation. A step costs one prediction of each row
for each parameter that the row uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scenarios.fitting.parameter import Parameter, Values
from scenarios.fitting.row import Row
from simulator.errors import CalibrationError
from simulator.least_squares import NORMAL_MAD, Array, RobustProblem

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
