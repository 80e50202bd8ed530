"""Robust least squares: Levenberg's and Marquardt's steps, Huber's weights, derivatives by finite differences.

Rows are few and predictions dear, so a step costs one prediction of each row for each parameter that the row uses.
Huber 1964 ("Robust Estimation of a Location Parameter"): residuals beyond 1.345 standard deviations count with their
size, not their square, which keeps 95 % of the efficiency where the noise is normal. Marquardt 1963: the damping is
scaled by the curvature of each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.fitting.parameter import Parameter, Values
from scenarios.fitting.row import Row
from simulator.errors import CalibrationError

Array = NDArray[np.floating[Any]]

HUBER = 1.345
"""In standard deviations; 95 % efficiency under normal noise (Huber 1981, "Robust Statistics", section 4.5)."""

NORMAL_MAD = 1.4826
"""Standard deviations in a median absolute deviation of normal noise, 1 / 0.6745."""

DIFFERENCE = 1e-2
"""How far a parameter is moved to see the slope: above the grain of tiles and of tuned choices, below curvature."""

STEPS = 40
GAIN = 1e-3
"""Steps at most, and the relative gain below which no further one is tried."""


@dataclass(frozen=True)
class Fit:
    """The *values* found for *parameters* by *rows*, beside the *fixed* ones.

    *covariance* is of the inner numbers (logarithms, where logarithmic), in the order of *parameters*; *slopes* are the
    derivatives of the residuals by them, a line for each row, then for each parameter known beforehand; *steps*: how
    many were taken.
    """

    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...]
    fixed: dict[str, float]
    found: dict[str, float]
    covariance: Array
    slopes: Array
    steps: int

    @property
    def values(self) -> dict[str, float]:
        """All parameters' values, the fixed ones too."""
        return {**self.fixed, **self.found}

    def deviation(self, name: str) -> float:
        """One standard deviation of the parameter *name*, relative to it where it is logarithmic."""
        place = [parameter.name for parameter in self.parameters].index(name)
        return float(self.covariance[place, place] ** 0.5)

    def errors(self) -> Array:
        """Predicted over measured, less 1, of each row."""
        return np.array([row.error(self.values) for row in self.rows])

    def without(self, left_out: Sequence[int]) -> dict[str, float]:
        """All parameters' values as the other rows have them, to first order."""
        problem = _Problem(self.parameters, self.rows, self.fixed)
        at = np.array([parameter.inner(self.found[parameter.name]) for parameter in self.parameters])
        residuals = problem.residuals(at)
        weights = problem.weights(residuals)
        weights[list(left_out)] = 0.0
        return problem.values(problem.clipped(at + _step(self.slopes, residuals, weights, 0.0)))


def least_squares(
    parameters: Sequence[Parameter], rows: Sequence[Row], fixed: Values | None = None, begin: Values | None = None
) -> Fit:
    """The values of *parameters* that make the residuals of *rows* least, those *fixed* staying as they are.

    *begin*: where to begin, unless at each parameter's start. Raises `CalibrationError` where there are no rows.
    """
    if not rows:
        raise CalibrationError(f"no rows to fit {', '.join(p.name for p in parameters)} to")
    problem = _Problem(tuple(parameters), tuple(rows), dict(fixed or {}))
    at = np.array([p.inner((begin or {}).get(p.name, p.start)) for p in parameters])
    at, steps = problem.descend(at)
    values = problem.values(at)
    found = {parameter.name: values[parameter.name] for parameter in parameters}
    residuals = problem.residuals(at)
    slopes = problem.slopes(at)
    return Fit(
        problem.parameters,
        problem.rows,
        problem.fixed,
        found,
        problem.covariance(residuals, slopes),
        slopes,
        steps,
    )


@dataclass(frozen=True)
class _Problem:
    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...]
    fixed: dict[str, float]

    def values(self, at: Array) -> dict[str, float]:
        """All values at the inner point *at*."""
        moved = {p.name: p.outer(float(inner)) for p, inner in zip(self.parameters, at, strict=True)}
        return {**self.fixed, **moved}

    def residuals(self, at: Array) -> Array:
        """Of the rows, in units of their noise, then of what is known of the parameters beforehand."""
        values = self.values(at)
        return np.array([*(row.residual(values) for row in self.rows), *self._known(at)])

    def slopes(self, at: Array) -> Array:
        """Derivatives of the residuals; of a parameter at its upper bound, backward."""
        columns, base = [], self.values(at)
        for place, parameter in enumerate(self.parameters):
            step = DIFFERENCE if parameter.logarithmic else DIFFERENCE * (parameter.high - parameter.low)
            if parameter.outer(float(at[place]) + step) >= parameter.high:
                step = -step
            moved = at.copy()
            moved[place] += step
            values, known = self.values(moved), self._known(moved) - self._known(at)
            columns.append(np.array([*(row.slope(values, base) for row in self.rows), *known]) / step)
        return np.array(columns).T

    def _known(self, at: Array) -> Array:
        """How far the parameters are from where they are expected, in standard deviations."""
        expected = zip(self.parameters, at, strict=True)
        return np.array([(x - p.inner(p.start)) / p.spread for p, x in expected if p.spread is not None])

    def weights(self, residuals: Array) -> Array:
        """Huber's, by the robust scale of the rows; what is known beforehand counts whole."""
        scale = _scale(residuals[: len(self.rows)])
        weights = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residuals), 1e-12))
        weights[len(self.rows) :] = 1.0
        return weights

    def loss(self, residuals: Array, weights: Array) -> float:
        """The weighted sum of squares."""
        return float(np.sum(weights * residuals**2))

    def clipped(self, at: Array) -> Array:
        """The point within the bounds nearest to *at*."""
        return np.array([p.inner(p.outer(float(x))) for p, x in zip(self.parameters, at, strict=True)])

    def descend(self, at: Array) -> tuple[Array, int]:
        """Steps downhill until they gain nothing."""
        at, damping = self.clipped(at), 1e-2
        residuals = self.residuals(at)
        for step in range(1, STEPS + 1):
            slopes, weights = self.slopes(at), self.weights(residuals)
            before = self.loss(residuals, weights)
            for _ in range(8):
                new = self.clipped(at + _step(slopes, residuals, weights, damping))
                there = self.residuals(new)
                if self.loss(there, weights) < before:
                    break
                damping *= 4
            else:
                return at, step
            damping /= 9
            at, residuals = new, there
            if before - self.loss(there, weights) < GAIN * before:
                return at, step
        return at, STEPS

    def covariance(self, residuals: Array, slopes: Array) -> Array:
        """The inverse curvature, scaled by the variance of what the rows leave over."""
        weights = self.weights(residuals)
        rows = len(self.rows)
        freedom = max(1, rows - len(self.parameters))
        variance = max(1.0, float(np.sum(weights[:rows] * residuals[:rows] ** 2)) / freedom)
        curvature = slopes[:rows].T @ (weights[:rows, None] * slopes[:rows]) / variance
        curvature += slopes[rows:].T @ slopes[rows:]
        return np.linalg.pinv(curvature)


def _step(slopes: Array, residuals: Array, weights: Array, damping: float) -> Array:
    curvature = slopes.T @ (weights[:, None] * slopes)
    damped = curvature + damping * np.diag(np.maximum(np.diag(curvature), 1e-9))
    step: Array = -np.linalg.pinv(damped) @ (slopes.T @ (weights * residuals))
    return step


def _scale(residuals: Array) -> float:
    """The robust standard deviation about 0, at least the noise itself."""
    return max(1.0, NORMAL_MAD * float(np.median(np.abs(residuals))))
