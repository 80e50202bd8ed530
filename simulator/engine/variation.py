"""Variation of computing times: between GPUs (stragglers, spread) and from op to op (jitter)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

SPREAD_STREAM = 1
"""Part of the seed of `spread`, so that its draws differ from those of `jitter`."""


@dataclass(frozen=True)
class Variation:
    """Factors on the computing times of ranks.

    *stragglers*: the factor of a rank, 1 if not given. *spread*: the coefficient of variation of a factor that is drawn
    once for each GPU. *jitter*: that of a factor that is drawn for each op. Both factors are log-normal with mean 1:
    positive, and skewed to the slow side. *seed* is the seed of all draws. Each rank has sequences of its own, so its
    times do not depend on which other ranks are simulated.
    """

    seed: int = 0
    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0

    @property
    def varies(self) -> bool:
        """True if all ranks have different times."""
        return self.jitter > 0 or self.spread > 0

    def slowdown(self, rank: int) -> float:
        """The factor on all computing times of *rank*."""
        slowdown = self.stragglers.get(rank, 1.0)
        if self.spread:
            slowdown *= float(_log_normal(np.random.default_rng([self.seed, rank, SPREAD_STREAM]), self.spread, 1)[0])
        return slowdown

    def factors(self, rank: int, ops: int) -> NDArray[np.float64] | None:
        """The factors on the next *ops* computing times of *rank*, all steps; None if there is no jitter."""
        if not self.jitter:
            return None
        return _log_normal(np.random.default_rng([self.seed, rank]), self.jitter, ops) * self.slowdown(rank)


def _log_normal(generator: np.random.Generator, variation: float, count: int) -> NDArray[np.float64]:
    """*count* draws of mean 1 with the coefficient of variation *variation*."""
    variance = log(1.0 + variation**2)
    return np.asarray(generator.lognormal(-variance / 2, sqrt(variance), count))
