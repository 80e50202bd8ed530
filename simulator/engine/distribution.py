"""Distributions of factors on times: log-normal, gamma, normal, or measured quantiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KINDS = ("lognormal", "gamma", "normal", "empirical")

LEAST = 1e-3
"""Factor below which a normal draw is cut off: times are positive."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of *kind* (one of `KINDS`) with mean 1 and the coefficient of variation *variation*.

    An empirical one has *quantiles* instead, (probability, factor) with both ascending, which are joined by lines.
    """

    kind: str = "lognormal"
    variation: float = 0.0
    quantiles: tuple[tuple[float, float], ...] = ()

    def __bool__(self) -> bool:
        """True if draws differ from 1."""
        return bool(self.variation or self.quantiles)

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return *count* independent factors."""
        return np.asarray(self._drawn(generator, count), np.float64)

    def _drawn(self, generator: np.random.Generator, count: int) -> Floats:
        if not self:
            return np.ones(count)
        if self.kind == "empirical":
            probabilities, factors = np.array(self.quantiles).T
            drawn: Floats = np.interp(generator.random(count), probabilities, factors)
            return drawn
        if self.kind == "gamma":
            shape = 1.0 / self.variation**2
            return generator.gamma(shape, 1.0 / shape, count)
        if self.kind == "normal":
            return np.maximum(LEAST, generator.normal(1.0, self.variation, count))
        variance = log(1.0 + self.variation**2)
        return generator.lognormal(-variance / 2, sqrt(variance), count)

    def __mul__(self, factor: float) -> Distribution:
        """Return the distribution with the deviations from 1 multiplied by *factor*."""
        scaled = tuple((share, max(LEAST, 1.0 + factor * (value - 1.0))) for share, value in self.quantiles)
        return replace(self, variation=self.variation * factor, quantiles=scaled)
