"""Replay runs a schedule on real processes with real communication. It is a second interpreter beside the simulator.

It measures a timeline of the same form, so validation is the comparison of two timelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Columns, Floats, Timeline
from clustersim.simulator.reading.errors import ReplayError
from clustersim.simulator.replay.execution import RankJob, execute
from clustersim.simulator.replay.launch import TIMEOUT, launch
from clustersim.simulator.replay.rank_process import NetworkPlace
from clustersim.simulator.replay.rendezvous import communications
from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send, scaled_bytes
from clustersim.simulator.schedule.schedule import Schedule

COMPUTE = ("sleep", "spin", "kernels")
"""Ways to compute: sleep or spin for the modelled time, or execute the kernels."""


@dataclass(frozen=True)
class Replay:
    """The *timelines* of the repetitions after the warm-up, in order."""

    timelines: tuple[Timeline, ...]

    @property
    def step_times(self) -> list[float]:
        """Seconds of a step, for each repetition."""
        return [timeline.step_time for timeline in self.timelines]

    @property
    def median(self) -> Timeline:
        """The timeline of median step time; of an even number the lower one."""
        return self.timelines[self.step_times.index(median_low(self.step_times))]


class BrokenReplayError(ReplayError):
    """A replay that did not end. *timelines*: the finished repetitions, the warm-up first."""

    def __init__(self, message: str, timelines: Sequence[Timeline]) -> None:
        self.timelines = tuple(timelines)
        super().__init__(message)


def replay(
    schedule: Schedule,
    seconds: Sequence[Sequence[float]],
    *,
    backend: str = "gloo",
    compute: str = "sleep",
    repeat: int = 3,
    places: Sequence[NetworkPlace] | None = None,
    timeout: float = TIMEOUT,
) -> Replay | None:
    """Run *schedule* on processes of this machine or of torchrun, *repeat* times after a warm-up.

    *seconds*: the modelled durations of the ops, by rank (`durations`). Each rank runs at its one of *places* (default:
    on the loopback interface). Raises `BrokenReplayError` if a rank fails, or after *timeout* s. Under torchrun only
    rank 0 gets the replay.
    """
    jobs = [RankJob(schedule, tuple(each), compute, 1 + repeat) for each in seconds]
    moments_of: list[dict[int, Floats]] = [{} for _ in range(1 + repeat)]

    def on_report(rank: int, report: tuple[int, Floats]) -> None:
        number, moments = report
        moments_of[number][rank] = moments

    try:
        results = launch(execute, jobs, backend=backend, places=places, timeout=timeout, on_report=on_report)
    except ReplayError as error:
        whole = [[ranks[r] for r in sorted(ranks)] for ranks in moments_of if len(ranks) == len(jobs)]
        raise BrokenReplayError(str(error), [measured(schedule, moments) for moments in whole]) from None
    if results is None:
        return None
    return Replay(tuple(measured(schedule, moments) for moments in list(zip(*results, strict=True))[1:]))


def measured(schedule: Schedule, moments: Sequence[Floats]) -> Timeline:
    """Return the timeline of (ready, end) of every op of each rank, step after step, in s.

    A communication begins when its last partner is ready. A message ends, for both partners, when its receiver has it:
    the sender's operating system takes it over earlier.
    """
    numbers = communications(schedule)
    each = 1 + max((int(own.max(initial=NO_COMMUNICATION)) for own in numbers), default=NO_COMMUNICATION)
    numbers = [
        np.concatenate([np.where(own == NO_COMMUNICATION, own, own + step * each) for step in range(schedule.steps)])
        for own in numbers
    ]
    all_ready, received = np.full((2, each * schedule.steps + 1), -np.inf)
    for rank, (own, (ready, end)) in enumerate(zip(numbers, (of_rank.T for of_rank in moments), strict=True)):
        np.maximum.at(all_ready, own, ready)
        receives = _where(schedule, rank, Recv) & (own != NO_COMMUNICATION)
        received[own[receives]] = end[receives]
    # ops without communication have the last place
    all_ready[NO_COMMUNICATION] = received[NO_COMMUNICATION] = -np.inf
    columns = []
    for rank, (own, (ready, end)) in enumerate(zip(numbers, (of_rank.T for of_rank in moments), strict=True)):
        last = np.where(_where(schedule, rank, Send), np.maximum(end, received[own]), end)
        # a rank that only sends may end a collective before its last partner is ready
        begin = np.minimum(np.maximum(ready, all_ready[own]), last)
        step, op = np.divmod(np.arange(len(own)), len(own) // schedule.steps or 1)
        order = np.argsort(last, kind="stable")
        columns.append(Columns(op[order], step[order], ready[order], begin[order], last[order], own[order]))
    return Timeline.unfolded(schedule, columns)


def _where(schedule: Schedule, rank: int, kind: type[Op]) -> npt.NDArray[np.bool_]:
    """Whether each op of *rank*, step after step, is of *kind*."""
    return np.tile(schedule.program(rank).column(lambda op: isinstance(op, kind), np.bool_), schedule.steps)


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """Return *schedule* with all communicated bytes multiplied by *factor*."""

    def change(op: Op) -> tuple[Op]:
        if isinstance(op, Collective) and op.per_peer is not None:
            op = replace(op, nbytes=op.nbytes * factor, per_peer=scaled_bytes(op.per_peer, factor))
            return (op,)
        if isinstance(op, Collective | Send | Recv | Copy):
            return (replace(op, nbytes=op.nbytes * factor),)
        return (op,)

    return schedule.map_programs(lambda program: program.map_ops(change))
