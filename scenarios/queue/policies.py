"""The orders in which waiting jobs start: first in, first out, and EASY backfilling.

A policy yields the jobs that start now with their nodes. Each is started before the next one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clustersim.scenarios.build.submissions import Submission
from clustersim.scenarios.queue.fabric import FreeNodes
from clustersim.scenarios.queue.jobs import RunningJob

Start = tuple[Submission, tuple[int, ...]]
"""A job and the nodes on which it starts."""


@dataclass
class SchedulerState:
    """What a scheduler knows: the *waiting* jobs in order of arrival, the *free* nodes, and the *running* jobs.

    *limit*: the time limit of a job (s). *reserved*: the start that was promised to a job when it first was the head,
    by its number.
    """

    free: FreeNodes
    limit: Callable[[Submission], float]
    waiting: list[Submission] = field(default_factory=list)
    running: Collection[RunningJob] = ()
    reserved: dict[int, float] = field(default_factory=dict)


def fifo(state: SchedulerState, now: float) -> Iterator[Start]:
    """Yield the first jobs, as many as fit; one that does not fit holds up those behind it."""
    while state.waiting and (nodes := state.free.place(state.waiting[0].nodes)) is not None:
        yield state.waiting[0], nodes


def backfill(state: SchedulerState, now: float) -> Iterator[Start]:
    """Yield the first jobs as `fifo` does, then others that do not delay the first one that waits.

    EASY: the head gets a reservation at the time when, by the time limits of the running jobs, enough nodes are free.
    A job behind it starts if its limit ends before that time, or if the nodes that are free then suffice for both.
    Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995); Mu'alem and Feitelson, IEEE TPDS 12 (2001).
    """
    yield from fifo(state, now)
    if not state.waiting:
        return
    head = state.waiting[0]
    shadow, counts = _reservation(state, head, now)
    state.reserved.setdefault(head.number, shadow)
    for job in state.waiting[1:]:
        nodes = state.free.place(job.nodes)
        if nodes is None:
            continue
        if now + state.limit(job) > shadow:
            rest = [there - own for there, own in zip(counts, state.free.count(nodes), strict=True)]
            if not state.free.holds(head.nodes, rest):
                continue
            counts = rest
        yield job, nodes


def _reservation(state: SchedulerState, head: Submission, now: float) -> tuple[float, Sequence[int]]:
    """Return when *head* can start by the limits of the running jobs, and the nodes free below each leaf then."""
    counts, shadow = state.free.counts(), now
    for job in sorted(state.running, key=lambda job: job.expected_end(now)):
        end = job.expected_end(now)
        if end > shadow and state.free.holds(head.nodes, counts):
            break
        shadow = end
        counts = [there + own for there, own in zip(counts, state.free.count(job.nodes), strict=True)]
    return shadow, counts


POLICIES: Mapping[str, Callable[[SchedulerState, float], Iterator[Start]]] = {"fifo": fifo, "backfill": backfill}
"""The policies by name."""
