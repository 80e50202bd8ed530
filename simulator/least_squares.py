"""Robust least squares: parameters that minimise Huber's loss of residuals, whose scale is estimated with them.

Residuals of at most *huber* times their scale count with their square, larger ones with their size, so that one
disturbed measurement does not bend the fit (Huber 1964, "Robust Estimation of a Location Parameter").
`scipy.optimize.least_squares` minimises the loss at a given scale. The scale is estimated again, and the loss minimised
again, until the scale stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation, 1 / 0.6745."""

ROUNDS, UNDAMPED = 30, 5
"""Estimates of the scale at most; two to four are usual. After *UNDAMPED* of them the scale is the geometric mean of
the last two estimates, because estimates may alternate."""

CLEARLY = 0.9
"""A loss below this share of another one is another minimum, no other end of the same search."""

SCALE_TOLERANCE = 1e-3
"""A relative change of the scale that no longer matters: n rows determine it to about 1 / sqrt(n)."""


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
        largest = float(np.max(np.abs(self.residuals(start))))
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
            estimate = self.scale(self.residuals(at))
            if abs(estimate - scale) <= SCALE_TOLERANCE * scale:
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
