"""Robust regression of positive parameters of a model on measured times, with relative errors; and the robust least
squares beneath it.

*Least squares.* The parameters minimise Huber's loss of the residuals, whose scale is estimated with them. Residuals of
at most *huber* times their scale count with their square, larger ones with their size, so that one disturbed
measurement does not bend the fit (Huber 1964, "Robust Estimation of a Location Parameter").
`scipy.optimize.least_squares` minimises the loss at a given scale. The scale is estimated again, and the loss minimised
again, until the scale stays as it is.

*Regression.* The residual of a row is log(predicted / measured), so a microsecond and a second weigh the same. The fit
moves the logarithms of the parameters, so no parameter becomes negative.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError

Array = NDArray[np.floating[Any]]

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation, 1 / 0.6745."""

ROUNDS, UNDAMPED = 30, 5
"""Estimates of the scale at most; two to four are usual. After *UNDAMPED* of them the scale is the geometric mean of
the last two estimates, because estimates may alternate."""

CLEARLY = 0.9
"""A loss below this share of another one is another minimum, no other end of the same search."""

SCALE_TOLERANCE, LEAST_SCALE_TOLERANCE = 0.01, 1e-3
"""A relative change of the scale that no longer matters: a hundredth of 1 / sqrt(n), which is about what n rows
determine it to, but at least a thousandth."""

HUBER = 0.3
"""Huber's bound in standard deviations. The usual 1.345 suits data with a few disturbed rows. Here the model lacks some
effects of size (caches, bursts), which must not bend the rest, so absolute deviations count.
"""

EFFICIENCY = 0.734
"""Its efficiency for normal errors: (2 F(c) - 1)^2 / (2 F(c) - 1 - 2 c f(c) + 2 c^2 (1 - F(c))) for c = 0.3 with the
normal distribution F and its density f (Huber, "Robust Statistics", 1981, section 3.2).
"""

LEAST_SCALE = 1e-6
"""Lower bound of the residuals' standard deviation, so that exact data have finite weights."""

TOLERANCE = 1e-7
"""A step that lowers the loss by less than this share, or changes all parameters by less, ends the search."""

EVALUATIONS = 100
"""Evaluations of the model at most, those for slopes not counted."""

DIFFERENCE = 1e-5
"""Step of a logarithm in the finite differences: far above rounding, far below the accuracy of a time."""


@dataclass(frozen=True, eq=False)
class RobustProblem:
    """A fit of k parameters to n rows.

    *residuals* maps a point (k) to the residuals (n), *slopes* to their derivatives (n x k). *scale* estimates the
    standard deviation of residuals. *expected* (k) is where the parameters are expected, from knowledge other than the
    rows, and *precision* (k) is 1 over the standard deviation of that; 0 if nothing is known.

    *relative*: residuals are divided by their scale before they are weighed against *expected*. Otherwise the caller
    has divided them by their noise.
    """

    residuals: Callable[[Array], Array]
    slopes: Callable[[Array], Array]
    scale: Callable[[Array], float]
    huber: float
    expected: Array
    precision: Array
    relative: bool
    low: float | Array = -inf
    high: float | Array = inf

    def weights(self, residuals: Array) -> Array:
        """Huber's weights of *residuals*: 1 within the bound, bound / size beyond."""
        bound = self.huber * self.scale(residuals)
        return np.asarray(np.minimum(1.0, bound / np.maximum(np.abs(residuals), 1e-12 * bound)))

    def minimum(self, start: Array, tolerance: float, smallest_step: float, evaluations: int) -> Array:
        """Return the point of least loss that is found from *start*.

        It is searched for once more from the least squares of all rows, and taken if its loss is clearly lower: which
        rows are outliers must not depend on *start*. A search ends when a step lowers the loss by less than the share
        *tolerance* or is shorter than *smallest_step*, or after so many *evaluations* of the residuals.
        """
        largest = max(LEAST_SCALE, float(np.max(np.abs(self.residuals(start)))))
        plain = self._minimum_at(largest, start, tolerance, smallest_step, evaluations)
        found = [self._found_from(one, tolerance, smallest_step, evaluations) for one in (start, plain)]
        scale = max(self.scale(self.residuals(at)) for at in found)
        first, second = (self._robust(scale, at) for at in found)
        return found[second < CLEARLY * first]

    def _found_from(self, start: Array, tolerance: float, smallest_step: float, evaluations: int) -> Array:
        """Return the point of least loss that is found from *start*, with the scale of its own residuals."""
        at, scale = start, self.scale(self.residuals(start))
        for number in range(ROUNDS):
            at = self._minimum_at(scale, at, tolerance, smallest_step, evaluations)
            residuals = self.residuals(at)
            estimate = self.scale(residuals)
            tolerance_of_scale = max(LEAST_SCALE_TOLERANCE, SCALE_TOLERANCE / sqrt(len(residuals)))
            if abs(estimate - scale) <= tolerance_of_scale * scale:
                break
            scale = estimate if number < UNDAMPED else sqrt(scale * estimate)
        return at

    def _robust(self, scale: float, at: Array) -> float:
        """Return the loss at the point *at* and a fixed *scale*."""
        return float(np.sum(self._loss(self._parts(scale, at) ** 2)[0]))

    def _parts(self, scale: float, at: Array) -> Array:
        """Return the residuals of the rows at *at* over Huber's bound, and of what is known (n + k)."""
        bound = self.huber * scale
        precision = self.precision / (self.huber if self.relative else bound)
        return np.concatenate([self.residuals(at) / bound, precision * (at - self.expected)])

    def _minimum_at(
        self, scale: float, start: Array, tolerance: float, smallest_step: float, evaluations: int
    ) -> Array:
        """Return the same at a fixed *scale*; the first step changes each parameter by at most 1."""
        from scipy.optimize import least_squares

        bound = self.huber * scale
        precision = self.precision / (self.huber if self.relative else bound)

        def residuals(step: Array) -> Array:
            return self._parts(scale, start + step)

        def slopes(step: Array) -> Array:
            return np.concatenate([self.slopes(start + step) / bound, np.diag(precision)])

        found = least_squares(
            residuals,
            np.zeros(len(start)),
            slopes,
            (self.low - start, self.high - start),
            method="dogbox",  # its solutions may lie on a bound, unlike those of "trf"
            loss=self._loss,
            ftol=tolerance,
            xtol=smallest_step,
            max_nfev=evaluations,
        )
        return np.asarray(start + found.x)

    def _loss(self, squares: Array) -> Array:
        """Huber's loss of the rows' *squares* and its two derivatives (3 x (n + k)); what is known counts squared."""
        size = np.sqrt(np.maximum(squares, 1.0))
        size[len(squares) - len(self.expected) :] = 1.0
        beyond = size > 1.0
        return np.stack(
            [
                np.where(beyond, 2 * size - 1, squares),
                1 / size,
                np.where(beyond, -0.5 / size**3, 0.0),
            ]
        )


@dataclass(frozen=True, slots=True, eq=False)
class RobustFit:
    """*parameters*, the relative standard error of each, and *residuals* log(predicted / measured) by row.

    *covariance*: of the parameters' logarithms. *scale*: the robust standard deviation of the residuals.
    """

    parameters: Array
    errors: Array
    residuals: Array
    covariance: Array
    scale: float

    @property
    def typical_error(self) -> float:
        """The median of the relative errors |predicted / measured - 1|."""
        return float(np.median(np.abs(np.expm1(self.residuals))))

    @property
    def exact(self) -> bool:
        """Whether the mean absolute residual is so small that `information` ignores it."""
        return float(np.mean(np.abs(self.residuals))) <= LEAST_SCALE

    @property
    def information(self) -> float:
        """Bayes' information criterion for absolute deviations (Schwarz 1978). The lower of two models is better.

        (4 / pi) n log(mean |residual|) + k log n. For Laplace errors the factor would be 2. For normal errors that
        would count chance as gain, by pi / 2; with 4 / pi the drop in absolute deviations is closer to chi-square
        (Koenker and Bassett 1982).
        """
        rows, mean = len(self.residuals), float(np.mean(np.abs(self.residuals)))
        return float(4 / np.pi * rows * np.log(max(mean, LEAST_SCALE)) + len(self.parameters) * np.log(rows))


def fit(
    predict: Callable[[Array], Array],
    start: Array,
    measured: Array,
    prior_deviation: float | Array = inf,
) -> RobustFit:
    """Return the parameters above 0 (k) with which *predict* fits *measured* best (both n, above 0), from *start* (k).

    *prior_deviation*: standard deviation of a parameter's logarithm about its start. Parameters that the rows do not
    determine stay there, with an error of that size. Raises `CalibrationError` for rows that are not positive and
    finite, and if rows and prior leave a parameter undetermined.
    """
    start, measured = np.asarray(start, float), np.asarray(measured, float)
    _check(start, measured)
    precision = np.broadcast_to(1.0 / np.asarray(prior_deviation, float), start.shape)

    def residuals(logs: Array) -> Array:
        return _logs(predict(np.exp(logs))) - np.log(measured)

    remembered = _remembered(residuals)

    def derivatives(logs: Array) -> Array:
        return _slopes(residuals, logs, remembered(logs))

    slopes = _remembered(derivatives)
    problem = RobustProblem(
        remembered,
        slopes,
        scale=lambda rest: _scale(rest, len(start)),
        huber=HUBER,
        expected=np.log(start),
        precision=precision,
        relative=True,
    )
    logs = problem.minimum(np.log(start), TOLERANCE, TOLERANCE, EVALUATIONS)
    rest = remembered(logs)
    scale = _scale(rest, len(start))
    covariance = _covariance(slopes(logs), EFFICIENCY / scale**2, precision)
    return RobustFit(np.exp(logs), np.sqrt(np.diag(covariance)), rest, covariance, scale)


def _check(start: Array, measured: Array) -> None:
    if not len(measured):
        raise CalibrationError("there are no measurements to fit")
    wrong = np.flatnonzero(~(np.isfinite(measured) & (measured > 0)))
    if len(wrong):
        raise CalibrationError(f"row {wrong[0]}: a time must be above 0 and finite, not {measured[wrong[0]]}")
    if not (np.isfinite(start) & (start > 0)).all():
        raise CalibrationError(f"every parameter must start above 0 and finite, not {start.tolist()}")


def _logs(times: Array) -> Array:
    times = np.asarray(times, float)
    if not (np.isfinite(times) & (times > 0)).all():
        raise CalibrationError("the model predicts a time that is not above 0 and finite")
    return np.asarray(np.log(times), float)


def _scale(residuals: Array, parameters: int) -> float:
    """The robust standard deviation about 0, corrected for the degrees of freedom of the parameters."""
    rows = len(residuals)
    free = np.sqrt(rows / max(1, rows - parameters))
    return max(LEAST_SCALE, float(NORMAL_MAD * np.median(np.abs(residuals)) * free))


def _remembered(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return *function* with its values kept: each search begins at a point at which another one ended."""
    values: dict[bytes, Array] = {}

    def remembered(at: Array) -> Array:
        key = at.tobytes()
        if key not in values:
            values[key] = function(at)
        return values[key]

    return remembered


def _slopes(residuals: Callable[[Array], Array], logs: Array, rest: Array) -> Array:
    """Return the derivatives of *residuals* at *logs*, where they are *rest*, by finite differences, n x k."""
    steps = DIFFERENCE * np.eye(len(logs))
    columns = [(residuals(logs + step) - rest) / DIFFERENCE for step in steps]
    return np.stack(columns, axis=1) if columns else np.zeros((len(rest), 0))


def _covariance(slopes: Array, weight: float, precision: Array) -> Array:
    normal = weight * slopes.T @ slopes + np.diag(precision**2)
    if normal.size and np.linalg.matrix_rank(normal, hermitian=True) < len(normal):
        raise CalibrationError(
            f"{len(slopes)} rows do not determine {len(normal)} parameters; measure more sizes or kinds, or fit fewer"
        )
    return np.asarray(np.linalg.inv(normal), float)
