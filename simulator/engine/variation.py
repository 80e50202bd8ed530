"""Variation of computing times: no two GPUs take quite the same time, and no GPU takes the same time twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

SPREAD_STREAM = 1
"""Tells the draws of `spread` from those of `jitter` under one seed."""


@dataclass(frozen=True)
class Variation:
    """Factors on the computing times of ranks.

    *stragglers* maps a rank to its factor. *spread* is the coefficient of variation of a factor that each GPU keeps,
    *jitter* that of a factor drawn for every op. Both factors are log-normal with mean 1: positive, skewed to the slow
    side. *seed* drives every draw; each rank has sequences of its own, so that its times do not depend on which other
    ranks are simulated.
    """

    seed: int = 0
    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0

    @property
    def varies(self) -> bool:
        """True if every rank has times of its own."""
        return self.jitter > 0 or self.spread > 0

    def slowdown(self, rank: int) -> float:
        """The factor on all computing times of *rank*."""
        slowdown = self.stragglers.get(rank, 1.0)
        if self.spread:
            slowdown *= float(_log_normal(np.random.default_rng([self.seed, rank, SPREAD_STREAM]), self.spread, 1)[0])
        return slowdown

    def factors(self, rank: int, ops: int) -> NDArray[np.float64] | None:
        """The factors on *ops* computing times of *rank* in turn, of all its steps; None where there is no jitter."""
        if not self.jitter:
            return None
        return _log_normal(np.random.default_rng([self.seed, rank]), self.jitter, ops) * self.slowdown(rank)


def _log_normal(generator: np.random.Generator, variation: float, count: int) -> NDArray[np.float64]:
    """Draws of mean 1 whose coefficient of variation is *variation*."""
    variance = log(1.0 + variation**2)
    return np.asarray(generator.lognormal(-variance / 2, sqrt(variance), count))
