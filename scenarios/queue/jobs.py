"""A job of the queue from its start to its end, and what is told of it then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from simpy import Process

from clustersim.scenarios.build.submissions import Submission
from clustersim.scenarios.queue.fabric import Uplinks
from clustersim.simulator.reading.dataclass import dataclass

SHORTEST = 10.0
"""Seconds to which shorter run times are raised in a bounded slowdown. Feitelson, "Metrics for Parallel Job Scheduling
and Their Convergence" (JSSPP 2001)."""


@dataclass(eq=False)
class RunningJob:
    """A job that runs on *nodes* since *start*; at *since* it had *left* of its work (steps, or seconds).

    *alone*: seconds for a unit of work without other jobs, on these nodes. *slowdown*: the factor on it now, beside
    *neighbours* that share links, and what each of them adds to the factor. *limit*: the time after which the scheduler
    expects its end.
    """

    submission: Submission
    nodes: tuple[int, ...]
    start: float
    since: float
    left: float
    alone: float
    limit: float
    uplinks: Uplinks = frozenset()
    slowdown: float = 1.0
    neighbours: dict[RunningJob, float] = field(default_factory=dict)
    process: Process | None = None

    @property
    def step_time(self) -> float:
        """Seconds for a unit of work now: a step, or a second of a plain duration."""
        return self.alone * self.slowdown

    def expected_end(self, now: float) -> float:
        """Return when the scheduler expects its end; a job that exceeds its limit may end at any moment."""
        return max(now, self.start + self.limit)


def joined(jobs: Iterable[RunningJob]) -> dict[RunningJob, None]:
    """Return *jobs*, and after them all that share links with them, directly or through others."""
    found = dict.fromkeys(jobs)
    left = list(found)
    while left:
        new = [other for other in left.pop().neighbours if other not in found]
        found |= dict.fromkeys(new)
        left += new
    return found


@dataclass(frozen=True)
class JobRecord:
    """What happened to a job: all times in s. *start* and *end* are None for what has not happened at the horizon.

    *nodes*: their numbers. *gpus*: those it uses, *held* those of its nodes. *done*: the part of its work so far.
    *compact*: how long it takes alone on as few leaves as possible; *alone*: on its nodes. *leaves*: on how many its
    nodes lie, *least_leaves*: on how few they could. *reserved*: the start that backfill promised it first, if it did.
    """

    submission: Submission
    start: float | None = None
    end: float | None = None
    nodes: tuple[int, ...] = ()
    gpus: int = 0
    held: int = 0
    done: float = 0.0
    compact: float = 0.0
    alone: float = 0.0
    leaves: int = 0
    least_leaves: int = 0
    reserved: float | None = None

    @property
    def waiting(self) -> float | None:
        """Seconds from its arrival to its start; None if it has not started."""
        return None if self.start is None else self.start - self.submission.arrival

    @property
    def run_time(self) -> float | None:
        """Seconds from its start to its end; None if it has not ended."""
        return None if self.start is None or self.end is None else self.end - self.start

    @property
    def turnaround(self) -> float | None:
        """Seconds from its arrival to its end; None if it has not ended."""
        return None if self.end is None else self.end - self.submission.arrival

    @property
    def bounded_slowdown(self) -> float | None:
        """Turnaround over run time, at least 1; run times below `SHORTEST` count as that. None if it has not ended."""
        if self.turnaround is None or self.run_time is None:
            return None
        return max(1.0, self.turnaround / max(self.run_time, SHORTEST))
