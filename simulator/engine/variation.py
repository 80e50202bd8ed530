"""No two GPUs take quite the same time: stragglers are slower by a factor, jitter varies every computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np


@dataclass(frozen=True)
class Variation:
    """*stragglers* maps a rank to the factor on its computing times; *jitter* is their coefficient of variation.

    Jittered times are log-normal about the modelled one as mean: positive, skewed to the slow side. *seed* drives
    every draw; each rank has a sequence of its own, so that a rank's times do not depend on who else is simulated.
    """

    seed: int = 0
    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)

    def slowdown(self, rank: int) -> float:
        """The factor on all computing times of *rank*."""
        return self.stragglers.get(rank, 1.0)

    def factors(self, rank: int, ops: int) -> np.ndarray | None:
        """The factors on *ops* computing times of *rank* in turn, of all its steps; None where there is no jitter."""
        if not self.jitter:
            return None
        variance = log(1.0 + self.jitter**2)
        draws = np.random.default_rng([self.seed, rank]).lognormal(-variance / 2, sqrt(variance), ops)
        return np.asarray(draws * self.slowdown(rank))
