"""Replay runs a schedule on real processes with real communication: the second interpreter beside the simulator.

What it measures is a timeline of the same form; validation is the comparison of two timelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from simulator.analysis.intervals import Floats
from simulator.errors import ReplayError
from simulator.schedule import Collective, Copy, Op, Recv, Schedule, Send
from simulator.timeline import Record, Timeline
from simulator.validation.launch import TIMEOUT, launch
from simulator.validation.meetings import Meeting, meetings
from simulator.validation.performance import Part, perform
from simulator.validation.place import Place

COMPUTE = ("sleep", "spin", "kernels")
"""Ways to compute: sleep or spin as long as the model says, or execute the kernels."""


@dataclass(frozen=True)
class Replay:
    """The *timelines* of the repetitions after the warm-up, in turn."""

    timelines: tuple[Timeline, ...]

    @property
    def step_times(self) -> list[float]:
        """Seconds a step, of each repetition."""
        return [timeline.step_time for timeline in self.timelines]

    @property
    def median(self) -> Timeline:
        """The timeline of median step time; of an even number the lower one."""
        return self.timelines[self.step_times.index(median_low(self.step_times))]


class BrokenReplayError(ReplayError):
    """A replay that did not come to its end; *timelines* are the repetitions that did, the warm-up first."""

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
    places: Sequence[Place] | None = None,
    timeout: float = TIMEOUT,
) -> Replay | None:
    """*schedule* as it runs on processes of this machine or of torchrun, *repeat* times after a warm-up.

    *seconds* are the modelled durations of the ops, by rank (`durations`). Each rank runs at its one of *places*, on
    the loopback interface unless given. Raises `BrokenReplayError` if a rank fails, or after *timeout* s. Under
    torchrun only rank 0 gets the replay.
    """
    parts = [Part(schedule, tuple(each), compute, 1 + repeat) for each in seconds]
    heard: list[dict[int, Floats]] = [{} for _ in range(1 + repeat)]

    def told(rank: int, report: tuple[int, Floats]) -> None:
        number, moments = report
        heard[number][rank] = moments

    try:
        results = launch(perform, parts, backend=backend, places=places, timeout=timeout, told=told)
    except ReplayError as error:
        whole = [[ranks[r] for r in sorted(ranks)] for ranks in heard if len(ranks) == len(parts)]
        raise BrokenReplayError(str(error), [measured(schedule, moments) for moments in whole]) from None
    if results is None:
        return None
    return Replay(tuple(measured(schedule, moments) for moments in list(zip(*results, strict=True))[1:]))


def measured(schedule: Schedule, moments: Sequence[Floats]) -> Timeline:
    """The timeline of (ready, end) of every op of each rank, step after step, in s.

    A communication begins when the last of its partners is ready for it. A message ends, for both, when its receiver
    has it: the system of the sender took it over before that, to send it on.
    """
    meets = [meetings(schedule, rank) for rank in range(schedule.mesh.world_size)]
    begun: dict[tuple[int, Meeting], float] = {}
    received: dict[tuple[int, Meeting], float] = {}
    for rank, step, op, ready, end in _each(meets, moments):
        meeting = meets[rank][op]
        if meeting is not None:
            begun[step, meeting] = max(ready, begun.get((step, meeting), ready))
            if isinstance(schedule.program(rank).ops[op], Recv):
                received[step, meeting] = end
    records: list[list[Record]] = [[] for _ in moments]
    for rank, step, op, ready, end in _each(meets, moments):
        meeting = meets[rank][op]
        begin, last = ready, end
        if meeting is not None:
            begin, last = begun[step, meeting], max(end, received.get((step, meeting), end))
        own = last if isinstance(schedule.program(rank).ops[op], Send) else end
        # a rank that only sends may be through with a collective before the last has come
        records[rank].append(Record(op, step, ready, min(begin, own), own))
    return Timeline(schedule, None, [sorted(each, key=lambda record: record.end) for each in records])


def _each(
    meets: Sequence[Sequence[Meeting | None]], moments: Sequence[Floats]
) -> Iterator[tuple[int, int, int, float, float]]:
    """(rank, step, op, ready, end) of everything."""
    for rank, of_rank in enumerate(moments):
        for place, (ready, end) in enumerate(of_rank.tolist()):
            yield rank, *divmod(place, len(meets[rank])), ready, end


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """*schedule* in which all that is communicated is *factor* times as large."""

    def change(op: Op) -> tuple[Op]:
        if isinstance(op, Collective | Send | Recv | Copy):
            return (replace(op, nbytes=op.nbytes * factor),)
        return (op,)

    return schedule.map_programs(lambda program: program.map_ops(change))
