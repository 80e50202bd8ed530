"""Variation of computing times: between GPUs, from op to op, from step to step, and for a while; and the distributions
of its factors: log-normal, gamma, normal, or measured quantiles.

Each rank has random sequences of its own, so its times do not depend on which other ranks are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KINDS = ("lognormal", "gamma", "normal", "empirical")

LEAST = 1e-3
"""Factor below which a normal draw is cut off: times are positive."""

SPREAD_STREAM, STEP_STREAM, SPELL_STREAM, PAUSE_STREAM = 1, 2, 3, 4
"""Parts of seeds, so that the draws differ from those of `Variation.jitter`."""


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


NONE = Distribution()
"""No variation."""


@dataclass(frozen=True)
class Spells:
    """Times in which a rank is slow: one begins in a step with *probability*, and ends after *steps* on average."""

    probability: float
    steps: float
    slowdown: float


@dataclass(frozen=True)
class Pauses:
    """Pauses of the host of a rank, such as garbage collection: in a step with *probability*, for *seconds*."""

    probability: float
    seconds: float


@dataclass(frozen=True)
class Variation:
    """Factors on the computing times of ranks.

    *stragglers*: the factor of a rank, 1 if not given. *spread*: of a factor that is drawn once for each GPU. *jitter*:
    of a factor that is drawn for each op. Both are a `Distribution`, or the coefficient of variation of a log-normal
    one: positive, and skewed to the slow side. *step*: of a factor for each step, common to all ranks. *spells* and
    *pauses*: slow times and pauses of single ranks. *seed* is the seed of all draws.
    """

    seed: int = 0
    jitter: float | Distribution = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    spread: float | Distribution = 0.0
    step: Distribution = NONE
    spells: Spells | None = None
    pauses: Pauses | None = None

    @property
    def varies(self) -> bool:
        """True if all ranks have different times."""
        return bool(self.jitter or self.spread or self.spells or self.pauses)

    @property
    def random(self) -> bool:
        """True if times depend on the seed."""
        return self.varies or bool(self.step)

    @property
    def changes(self) -> bool:
        """True if the times of a rank change from op to op or from step to step."""
        return bool(self.jitter or self.step or self.spells or self.pauses)

    def slowdown(self, rank: int) -> float:
        """The factor on all computing times of *rank*."""
        slowdown = self.stragglers.get(rank, 1.0)
        if self.spread:
            slowdown *= float(_distribution(self.spread).draw(self._generator(rank, SPREAD_STREAM), 1)[0])
        return slowdown

    def factors(self, rank: int, steps: int, ops: int) -> Floats | None:
        """The factors on the computing times of *rank*, of shape ``(steps, ops)``; None if they are all the same."""
        if not self.changes:
            return None
        each = np.ones((steps, ops))
        if self.jitter:
            each = _distribution(self.jitter).draw(self._generator(rank), steps * ops).reshape(steps, ops)
        each = each * self.slowdown(rank)
        if self.step:
            each = (
                each * self.step.draw(np.random.default_rng([self.seed, STEP_STREAM, STEP_STREAM, 0]), steps)[:, None]
            )
        if self.spells:
            each = np.where(self._slow(rank, self.spells, steps)[:, None], each * self.spells.slowdown, each)
        return each

    def paused(self, rank: int, steps: int, computing: NDArray[np.intp], ops: int) -> Floats | None:
        """The seconds of pauses before each op of *rank*, of shape ``(steps, ops)``; None without pauses.

        A pause hits a random one of the ops at the indices *computing*.
        """
        if self.pauses is None or not len(computing):
            return None
        generator = self._generator(rank, PAUSE_STREAM)
        hit = generator.random(steps) < self.pauses.probability
        where = computing[generator.integers(0, len(computing), steps)]
        seconds = np.zeros((steps, ops))
        seconds[np.flatnonzero(hit), where[hit]] = self.pauses.seconds
        return seconds

    def _slow(self, rank: int, spells: Spells, steps: int) -> NDArray[np.bool_]:
        """The steps in which *rank* is slow; the first step is one of a long run."""
        generator = self._generator(rank, SPELL_STREAM)
        draws, slow = generator.random(steps + 1), np.zeros(steps, np.bool_)
        ends = 1.0 / spells.steps
        now = draws[-1] < spells.probability / (spells.probability + ends)
        for step in range(steps):
            slow[step] = now
            now = draws[step] >= ends if now else draws[step] < spells.probability
        return slow

    def _generator(self, rank: int, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, rank, *stream])


def _distribution(given: float | Distribution) -> Distribution:
    return given if isinstance(given, Distribution) else Distribution("lognormal", given)
