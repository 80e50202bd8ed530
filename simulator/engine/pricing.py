"""Pricing: the durations of the computations of a rank, as its accelerator prices them, with their variation; and all
of them at once for a replay that sleeps.

Variation of computing times: between GPUs, from op to op, from step to step, and for a while; and the distributions
of its factors: log-normal, gamma, normal, or measured quantiles.

Each rank has random sequences of its own, so its times do not depend on which other ranks are simulated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Compute, Delay
from clustersim.simulator.schedule.schedule import Schedule

Floats = NDArray[np.float64]


class Pricing:
    """The durations of the ops of *schedule* on *devices* (by rank) of *cluster*; *software* issues the kernels."""

    def __init__(
        self,
        schedule: Schedule,
        cluster: Cluster,
        devices: Sequence[str],
        software: Software | None,
        variation: Variation,
    ) -> None:
        self.schedule, self.cluster, self.devices = schedule, cluster, devices
        self.software, self.variation = software, variation
        self._on_host = [program.computes_on_host for program in schedule.programs]
        self._modelled: dict[Hashable, tuple[Floats, NDArray[np.bool_]]] = {}

    def with_variation(self, variation: Variation) -> Pricing:
        """The pricing of the same ops under another *variation*."""
        other = copy(self)
        other.variation = variation
        return other

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank that computes on one."""
        computing = np.flatnonzero(np.array(self._on_host)[self.schedule.program_numbers]).tolist()
        return {rank: host for rank in computing if (host := self.host(rank)) is not None}

    def host(self, rank: int) -> str | None:
        """The host that *rank* computes on; None if it does not compute on a host."""
        if not self._on_host[self.schedule.program_of[rank]]:
            return None
        device = self.devices[rank]
        return device if self.schedule.program(rank).on == "host" else self.cluster.host_of(device)

    def durations(self, rank: int) -> Floats:
        """The duration of each op of *rank*, s, of shape ``(steps, ops)``; 0 for a communication.

        Variation is included; a `Delay` does not vary. If all steps take the same, the array is a
        read-only view of one step.
        """
        program, steps = self.schedule.program(rank), self.schedule.steps
        modelled, constant = self._modelled_durations(rank)
        factors = self.variation.factors(rank, steps, len(program.ops))
        if factors is not None:
            varied = np.where(constant, modelled, modelled * factors)
            pauses = self.variation.paused(rank, steps, np.flatnonzero((modelled > 0) & ~constant), len(program.ops))
            return varied if pauses is None else varied + pauses
        varied = np.where(constant, modelled, modelled * self.variation.slowdown(rank))
        return np.broadcast_to(varied, (steps, len(program.ops)))

    def durations_key(self, rank: int) -> Hashable:
        """A key that is equal for ranks with equal `durations`."""
        if self.variation.changes and self.variation.varies:
            return rank
        return id(self._modelled_durations(rank)), self.variation.slowdown(rank)

    def _modelled_durations(self, rank: int) -> tuple[Floats, NDArray[np.bool_]]:
        """By op of *rank*: its duration without variation (s), and if it never varies. Equal ranks share arrays."""
        index, on = self.schedule.program_of[rank], self.host(rank)
        cluster, software = self._machine(rank)
        device = cluster.accelerator(self.devices[rank])
        host = cluster.accelerator(on) if on is not None else None
        key = index, device, host
        if key not in self._modelled:
            program = self.schedule.programs[index]
            # ops of many micro-batches and layers share their tuple of kernels: it is hashed and priced once, and kept,
            # so that no other one has its identity
            prices: dict[tuple[int, bool], tuple[tuple[Kernel, ...], float]] = {}

            def price(op: Compute | Delay) -> float:
                if not isinstance(op, Compute):
                    return op.seconds
                what = id(op.kernels), op.on == "host"
                if what not in prices:
                    prices[what] = op.kernels, _seconds(op, device, host, software)
                return prices[what][1]

            seconds = program.column(price, only=(Compute, Delay))
            self._modelled[key] = seconds, program.column(lambda _: True, np.bool_, only=(Delay,))
        return self._modelled[key]

    def _machine(self, rank: int) -> tuple[Cluster, Software | None]:
        """The cluster as fast as *rank* has it, and the software of *rank*."""
        return self.cluster, self.software


class PricingByJob(Pricing):
    """The durations of the ops of several jobs. The ranks of job i, from ``first_rank[i]`` on, run on ``machines[i]``:
    the cluster, with GPUs as slow as the slowest of the job, and its software.
    """

    def __init__(
        self,
        schedule: Schedule,
        cluster: Cluster,
        devices: Sequence[str],
        machines: Sequence[tuple[Cluster, Software]],
        first_rank: Sequence[int],
    ) -> None:
        super().__init__(schedule, cluster, devices, None, Variation())
        self._machines, self._first_rank = machines, first_rank

    def _machine(self, rank: int) -> tuple[Cluster, Software | None]:
        return self._machines[bisect_right(self._first_rank, rank) - 1]


def _seconds(op: Compute, device: Accelerator, host: Accelerator | None, software: Software | None) -> float:
    if op.on == "host" and host is not None:
        return host.seconds(op.kernels)
    return device.seconds(op.kernels, software)


def durations(
    schedule: Schedule,
    cluster: Cluster,
    devices: Sequence[str],
    software: Software | None = None,
    variation: Variation | None = None,
) -> list[list[float]]:
    """Return the seconds of the ops of each rank, step after step, as the engine prices them; 0 for communications.

    *devices*: the GPU or host of each rank. Computations that share a processor do not slow each other down.
    """
    pricing = Pricing(schedule, cluster, devices, software, variation or Variation())
    return [pricing.durations(rank).ravel().tolist() for rank in range(len(devices))]


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
