"""Collectives one after the other, in several groups at once: simulated and measured on a testbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.pricing import durations
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.replay import testbed
from clustersim.simulator.replay.comparison import relative_error
from clustersim.simulator.replay.replay import replay
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate

Case = tuple[str, float, str]
"""Kind, bytes, algorithm of a collective."""

ROUNDS = 5
"""Most rounds of one measurement. A quiet machine needs one; other work rarely disturbs the same row five times."""


def shortest(
    measure: Callable[[], Sequence[float]], too_long: Callable[[Sequence[float]], bool], rounds: int = ROUNDS
) -> list[float]:
    """Return the shortest time of each row, in s. *measure* returns one time for each row.

    Measure again, at most *rounds* times in all, only while *too_long* is true of the times so far. Other work on the
    machine lengthens a time and never shortens it. So the minimum is the best estimate, a time above its bound may be
    noise, and a time below its bound is an error of the model: no further round can mend it.
    """
    times = list(measure())
    for _ in range(rounds - 1):
        if not too_long(times):
            break
        times = list(map(min, times, measure()))
    return times


@dataclass(frozen=True)
class Row:
    """The simulated and the measured time of a *case*, in s."""

    case: Case
    simulated: float
    measured: float

    @property
    def error(self) -> float:
        return relative_error(self.simulated, self.measured)

    def __str__(self) -> str:
        kind, nbytes, algorithm = self.case
        both = f"{self.simulated * 1e3:.1f} ms simulated, {self.measured * 1e3:.1f} ms measured"
        return f"{kind} of {nbytes / 1e6:g} MB ({algorithm}): {both}, {self.error:+.1%}"


def bench(
    cluster: Cluster, groups: Sequence[Sequence[int]], cases: Sequence[Case], transport: Transport, bound: float
) -> list[Row]:
    """Simulate and measure *cases*, which every group executes in turn.

    Measure again, a few times at most, while a simulated time is shorter than the measured one by more than *bound*.
    """
    schedule = scheduled(groups, cases)
    devices = [f"gpu {rank}" for rank in range(schedule.mesh.world_size)]
    with testbed.build(cluster, devices) as built:
        simulated = times(simulate(schedule, built.cluster, transport=transport, placement=devices))
        seconds = durations(schedule, built.cluster, devices)

        def measure() -> list[float]:
            replayed = replay(schedule, seconds, places=built.places, repeat=2, timeout=600.0)
            assert replayed is not None
            return [min(column) for column in zip(*map(times, replayed.timelines), strict=True)]

        def too_long(measured: Sequence[float]) -> bool:
            return any(map(lambda ours, theirs: relative_error(ours, theirs) < -bound, simulated, measured))

        measured = shortest(measure, too_long)
    return [Row(*row) for row in zip(cases, simulated, measured, strict=True)]


def scheduled(groups: Sequence[Sequence[int]], cases: Sequence[Case]) -> Schedule:
    """All *cases* in turn. A small all-reduce over all ranks before each lets them begin together."""
    ops = tuple(
        op
        for number, (kind, nbytes, algorithm) in enumerate(cases)
        for op in (
            Collective(name=f"barrier {number}", kind="all_reduce", over="world", nbytes=4),
            Collective(name=f"{kind} {number}", kind=kind, over="all", nbytes=nbytes, algorithm=algorithm),
        )
    )
    ranks = sum(map(len, groups))
    axes = {"all": Axis(tuple(map(tuple, groups))), "world": Axis((tuple(range(ranks)),))}
    return Schedule(Mesh(ranks, axes), (Program("rank", ops),), (0,) * ranks)


def times(timeline: Timeline) -> list[float]:
    """Return the seconds of each case, from the first rank that is ready to the last rank that ends.

    A rank that is late lengthens this time. Counted from the last rank's begin, a late rank would shorten it: part of
    the bytes would be under way already.
    """
    ready: dict[str, float] = {}
    end: dict[str, float] = {}
    for rank in range(timeline.world_size):
        for span in timeline.spans(rank):
            name = span.op.name
            ready[name] = min(ready.get(name, span.ready), span.ready)
            end[name] = max(end.get(name, span.end), span.end)
    names = [op.name for op in timeline.schedule.programs[0].ops][1::2]
    return [end[name] - ready[name] for name in names]
