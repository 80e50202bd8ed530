"""The job of a campaign, in steps and seconds: what `scenarios.campaign.campaign` simulates; and closed forms: the best
time between checkpoints, and the wait for a spare node.

Failures are exponentially distributed. The wait follows from the birth-death chain of machine repair.

Notation of Daly 2006 ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22): tau is the time of work between two checkpoints, delta the time to write one, R the time to
restart, M the mean time between failures. All in s.

State k is the number of broken nodes. A job on n nodes breaks them at the rate n / M while it runs, and each is
repaired at the rate 1 / r. With s spares the job stops in state s + 1, and nodes that do not run do not break. The
probability of that state is Erlang's loss formula with s + 1 servers (Kleinrock, "Queueing Systems", volume 1); it
depends on the repair times by their mean alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from math import ceil, exp, expm1, inf, sqrt
from typing import NamedTuple

from clustersim.simulator.reading.dataclass import dataclass

LOST = ("rework", "checkpoint", "detect", "waiting", "restart", "shrunk", "maintenance")
"""Causes of time that is not productive: work done again, writing checkpoints, noticing a failure, waiting for a node,
restarting and loading, training with fewer replicas, planned stops."""


@dataclass(frozen=True)
class TrainingStage:
    """*steps* of *seconds* and *tokens* each."""

    steps: int
    seconds: float
    tokens: float = 0.0


@dataclass(frozen=True)
class Checkpoints:
    """A checkpoint after each *interval* seconds of training, rounded to whole steps.

    Training stops for *stall* seconds. The checkpoint is complete *write* seconds after the begin of the stall.
    """

    interval: float
    stall: float
    write: float


@dataclass(frozen=True)
class Breakdowns:
    """Failures and repairs; all times in s.

    *mtbf*: mean time between failures of the whole job; or the *times* of failures since the begin. *broken*: share
    of the failures after which a node is repaired. *restart*: the loading of the checkpoint included. *spares*: None if
    there is always one. *lost_work*: the most work that a failure loses.
    """

    mtbf: float = inf
    times: tuple[float, ...] = ()
    detect: float = 0.0
    replace: float = 0.0
    restart: float = 0.0
    spares: int | None = None
    repair: float = 0.0
    broken: float = 1.0
    elastic: bool = False
    lost_work: float = inf


@dataclass(frozen=True)
class TrainingRun:
    """Training of *stages* in turn on *nodes* with *replicas*.

    *maintenance*: (time between planned stops, duration of a stop) in s.
    """

    stages: tuple[TrainingStage, ...]
    nodes: int = 1
    replicas: int = 1
    checkpoints: Checkpoints | None = None
    failures: Breakdowns | None = None
    maintenance: tuple[float, float] | None = None

    @property
    def steps(self) -> int:
        """All steps of the campaign."""
        return sum(stage.steps for stage in self.stages)

    @cached_property
    def productive(self) -> float:
        """Seconds of the campaign if nothing fails and nothing is written: steps x step time."""
        return self.seconds(0, self.steps)

    def seconds(self, begin: int, end: int) -> float:
        """Return the seconds of the steps from *begin* up to *end*."""
        return self._at(end, "seconds") - (self._at(begin, "seconds") if begin else 0.0)

    def tokens(self, steps: int) -> float:
        """Return the tokens of the first *steps*."""
        return self._at(steps, "tokens")

    def _at(self, steps: int, what: str) -> float:
        total = 0.0
        for stage, first in zip(self.stages, self._firsts, strict=False):
            if steps <= first:
                break
            total += min(stage.steps, steps - first) * float(getattr(stage, what))
        return total

    @cached_property
    def _firsts(self) -> Sequence[int]:
        """The number of steps before each stage, and before the end."""
        return list(accumulate((stage.steps for stage in self.stages), initial=0))

    def steps_within(self, begin: int, seconds: float) -> int:
        """Return how many whole steps from step *begin* on end within *seconds*."""
        done = 0
        for stage, first in zip(self.stages, self._firsts, strict=False):
            left = first + stage.steps - begin - done
            if left <= 0 or not stage.seconds:
                continue
            whole = min(left, int(seconds / stage.seconds))
            done, seconds = done + whole, seconds - whole * stage.seconds
            if whole < left:
                break
        return done

    def speed(self, missing: int) -> float:
        """Return the share of the replicas that run on all nodes but *missing*, each as fast as before."""
        return max(0, self.replicas - ceil(missing * self.replicas / self.nodes)) / self.replicas

    @property
    def mean_restart(self) -> float:
        """Mean seconds from a failure until training goes on, if there is a spare and no further failure comes."""
        failures = self.failures or Breakdowns()
        return failures.detect + failures.broken * failures.replace + failures.restart

    def next_checkpoint(self, begin: int) -> int:
        """Return the step after which the next checkpoint is written, if the last one was after step *begin*."""
        if self.checkpoints is None:
            return self.steps
        stage = next(s for s, first in zip(self.stages, self._firsts, strict=False) if begin < first + s.steps)
        return min(self.steps, begin + whole_steps(self.checkpoints.interval, stage.seconds))

    @property
    def interval(self) -> float:
        """Seconds of training between two checkpoints in the last stage; the whole campaign without checkpoints."""
        if self.checkpoints is None:
            return self.productive
        last = self.stages[-1]
        return min(self.productive, last.seconds * whole_steps(self.checkpoints.interval, last.seconds))

    def every(self, interval: float) -> TrainingRun:
        """Return the job with a checkpoint after each *interval* seconds of training."""
        assert self.checkpoints is not None
        return replace(self, checkpoints=replace(self.checkpoints, interval=interval))


def whole_steps(interval: float, step: float) -> int:
    """Return the number of steps of *step* seconds that comes nearest to *interval*, at least 1."""
    return max(1, round(interval / step)) if step else 1


MOST_EXPONENT = 700.0
"""exp of more does not fit a floating-point number."""


def cost(tau: float, delta: float, restart: float, mtbf: float) -> float:
    """Return the expected time for each second of work: M e^(R/M) (e^((tau + delta)/M) - 1) / tau.

    Failures may also come while a checkpoint is written and during a restart. Infinite if it is beyond any number.

    >>> cost(100.0, 0.0, 0.0, float("inf"))
    1.0
    """
    if mtbf == inf:
        return (tau + delta) / tau
    if (restart + tau + delta) / mtbf > MOST_EXPONENT:
        return inf
    return mtbf * exp(restart / mtbf) * expm1((tau + delta) / mtbf) / tau


def young(delta: float, mtbf: float) -> float:
    """Return Young's interval: sqrt(2 delta M) (Communications of the ACM 17 (9), 1974)."""
    return sqrt(2.0 * delta * mtbf)


def daly(delta: float, mtbf: float) -> float:
    """Return Daly's higher-order interval.

    >>> round(daly(300.0, 86_400.0))
    7001
    """
    if delta >= 2.0 * mtbf:
        return mtbf
    share = delta / (2.0 * mtbf)
    return young(delta, mtbf) * (1.0 + sqrt(share) / 3.0 + share / 9.0) - delta


def optimal(delta: float, mtbf: float) -> float:
    """Return the interval with the least `cost`, which does not depend on the restart.

    The derivative of the cost is 0 where (tau/M - 1) e^(tau/M - 1) = -e^(-1 - delta/M), Lambert's function W.
    """
    from scipy.special import lambertw

    return mtbf * (1.0 + float(lambertw(-exp(-1.0 - delta / mtbf)).real))


ESTIMATES = {"young": young, "daly": daly, "optimal": optimal}
"""The rules by the words of a scenario."""

MOST_SPARES = 10_000


def waiting_share(spares: int, load: float) -> float:
    """Return the share of the time in which a job with *spares* waits for a node.

    *load*: mean number of nodes in repair if there were always a spare, n r / M.

    >>> waiting_share(0, 1.0), waiting_share(1, 1.0)
    (0.5, 0.2)
    """
    share = 1.0
    for servers in range(1, spares + 2):
        share = load * share / (servers + load * share)
    return share


class SpareChoice(NamedTuple):
    """With so many *spares* the job waits for *waiting* of the time; *cost*: node time paid for each of work."""

    spares: int
    waiting: float
    cost: float


def choices(nodes: int, load: float) -> Iterator[SpareChoice]:
    """Yield the choices from no spare on, for a job on *nodes*."""
    for spares in range(MOST_SPARES):
        waiting = waiting_share(spares, load)
        yield SpareChoice(spares, waiting, (nodes + spares) / nodes / (1.0 - waiting))


def cheapest(nodes: int, load: float) -> SpareChoice:
    """Return the number of spares with the least node time for each of work: one more costs more than it saves."""
    best: SpareChoice | None = None
    for choice in choices(nodes, load):
        if best is not None and choice.cost >= best.cost:
            return best
        best = choice
    assert best is not None
    return best
