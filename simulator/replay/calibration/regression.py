"""Robust regression fits positive parameters of a model to measured times, errors counted relative to the time.

The residual of a row is log(predicted / measured), so a microsecond and a second weigh the same. Residuals beyond
Huber's bound count linearly instead of squared, so one disturbed row does not bend the curve. The fit moves the
logarithms of the parameters: no parameter becomes negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from simulator.errors import CalibrationError
from simulator.least_squares import NORMAL_MAD, Array, RobustProblem

Vector = Array

HUBER = 0.3
"""Huber's bound in standard deviations. The usual 1.345 is for rows of which a few are disturbed; where the model
leaves out what some sizes do (caches, bursts), these must not bend the rest, and absolute deviations are what counts.
"""

EFFICIENCY = 0.734
"""How efficient that is where errors are normal: (2 F(c) - 1)^2 / (2 F(c) - 1 - 2 c f(c) + 2 c^2 (1 - F(c))) for
c = 0.3 with the normal distribution F and its density f (Huber, "Robust Statistics", 1981, section 3.2)."""

LEAST_SCALE = 1e-6
"""The residual's standard deviation is not taken smaller than this, so that exact data have weights."""

TOLERANCE = 1e-7
"""A step that lowers the loss by less than this share, or changes all parameters by less, ends the search."""

EVALUATIONS = 100
"""Evaluations of the model at most, those for slopes not counted."""

DIFFERENCE = 1e-5
"""Step of a logarithm in the finite differences: far above rounding, far below what a time is known to."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """*parameters*, and the relative standard error of each; *residuals* log(predicted / measured), row by row.

    *covariance* is that of the parameters' logarithms; *scale* the robust standard deviation of the residuals.
    """

    parameters: Vector
    errors: Vector
    residuals: Vector
    covariance: Vector
    scale: float

    @property
    def typical_error(self) -> float:
        """The median of the relative errors |predicted / measured - 1|."""
        return float(np.median(np.abs(np.expm1(self.residuals))))

    @property
    def information(self) -> float:
        """Bayes' information criterion of absolute deviations (Schwarz 1978): of two models less is better.

        (4 / pi) n log(mean |residual|) + k log n. Where errors are Laplace's the factor would be 2, but where they are
        normal that takes chance for gain, by pi / 2: the drop in absolute deviations is then so much nearer to
        chi-square (Koenker and Bassett 1982).
        """
        rows, mean = len(self.residuals), float(np.mean(np.abs(self.residuals)))
        return float(4 / np.pi * rows * np.log(max(mean, LEAST_SCALE)) + len(self.parameters) * np.log(rows))


def fit(
    predict: Callable[[Vector], Vector],
    start: Vector,
    measured: Vector,
    loosely: float | Vector = inf,
) -> Fit:
    """The parameters, above 0, with which *predict* comes nearest to *measured* (both n, above 0), from *start* (k).

    *loosely* is how far a parameter is believed to lie from its start: a standard deviation of its logarithm. What the
    rows do not determine then stays there, and its error tells so. Raises `CalibrationError` for rows that are not
    positive and finite, and where rows and beliefs leave a parameter undetermined.
    """
    start, measured = np.asarray(start, float), np.asarray(measured, float)
    _check(start, measured)
    belief = np.broadcast_to(1.0 / np.asarray(loosely, float), start.shape)

    def residuals(logs: Vector) -> Vector:
        return _logs(predict(np.exp(logs))) - np.log(measured)

    problem = RobustProblem(
        residuals,
        slopes=lambda logs: _slopes(residuals, logs),
        scale=lambda rest: _scale(rest, len(start)),
        huber=HUBER,
        expected=np.log(start),
        precision=belief,
        relative=True,
    )
    logs = problem.minimum(np.log(start), TOLERANCE, TOLERANCE, EVALUATIONS)
    rest = residuals(logs)
    scale = _scale(rest, len(start))
    covariance = _covariance(_slopes(residuals, logs), EFFICIENCY / scale**2, belief)
    return Fit(np.exp(logs), np.sqrt(np.diag(covariance)), rest, covariance, scale)


def _check(start: Vector, measured: Vector) -> None:
    if not len(measured):
        raise CalibrationError("there are no measurements to fit")
    wrong = np.flatnonzero(~(np.isfinite(measured) & (measured > 0)))
    if len(wrong):
        raise CalibrationError(f"row {wrong[0]}: a time must be above 0 and finite, not {measured[wrong[0]]}")
    if not (np.isfinite(start) & (start > 0)).all():
        raise CalibrationError(f"every parameter must start above 0 and finite, not {start.tolist()}")


def _logs(times: Vector) -> Vector:
    times = np.asarray(times, float)
    if not (np.isfinite(times) & (times > 0)).all():
        raise CalibrationError("the model predicts a time that is not above 0 and finite")
    return np.asarray(np.log(times), float)


def _scale(residuals: Vector, parameters: int) -> float:
    """The robust standard deviation about 0, widened for the degrees of freedom that the parameters took."""
    rows = len(residuals)
    free = np.sqrt(rows / max(1, rows - parameters))
    return max(LEAST_SCALE, float(NORMAL_MAD * np.median(np.abs(residuals)) * free))


def _slopes(residuals: Callable[[Vector], Vector], logs: Vector) -> Vector:
    """Return the derivatives of *residuals* at *logs* by finite differences, n x k."""
    steps, rest = DIFFERENCE * np.eye(len(logs)), residuals(logs)
    columns = [(residuals(logs + step) - rest) / DIFFERENCE for step in steps]
    return np.stack(columns, axis=1) if columns else np.zeros((len(rest), 0))


def _covariance(slopes: Vector, weight: float, belief: Vector) -> Vector:
    normal = weight * slopes.T @ slopes + np.diag(belief**2)
    if normal.size and np.linalg.matrix_rank(normal, hermitian=True) < len(normal):
        raise CalibrationError(
            f"{len(slopes)} rows do not determine {len(normal)} parameters; measure more sizes or kinds, or fit fewer"
        )
    return np.asarray(np.linalg.inv(normal), float)
