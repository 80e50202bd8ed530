"""Collectives one after the other, in several groups at once, as simulated and as measured on a testbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from simulator.cluster import Cluster
from simulator.engine.simulate import simulate
from simulator.network.transport.transport import Transport
from simulator.replay.comparison import relative_error
from simulator.replay.durations import durations
from simulator.replay.replay import replay
from simulator.replay.testbed import testbed
from simulator.schedule import Collective, Program, Schedule
from simulator.schedule.mesh import Axis, Mesh
from simulator.timeline import Timeline

Asked = tuple[str, float, str]
"""Kind, bytes, algorithm."""


@dataclass(frozen=True)
class Row:
    """What *asked* for takes, in s."""

    asked: Asked
    simulated: float
    measured: float

    @property
    def error(self) -> float:
        return relative_error(self.simulated, self.measured)

    def __str__(self) -> str:
        kind, nbytes, algorithm = self.asked
        times = f"{self.simulated * 1e3:.1f} ms simulated, {self.measured * 1e3:.1f} ms measured"
        return f"{kind} of {nbytes / 1e6:g} MB ({algorithm}): {times}, {self.error:+.1%}"


def bench(
    cluster: Cluster, groups: Sequence[Sequence[int]], asked: Sequence[Asked], transport: Transport, repeat: int
) -> list[Row]:
    """Every group does all that is *asked* in turn; a time is from the last rank's begin to the last rank's end."""
    schedule = scheduled(groups, asked)
    devices = [f"gpu {rank}" for rank in range(schedule.mesh.world_size)]
    with testbed.build(cluster, devices) as bed:
        timeline = simulate(schedule, bed.cluster, transport=transport, placement=devices)
        seconds = durations(schedule, bed.cluster, devices)
        replayed = replay(schedule, seconds, places=bed.places, repeat=repeat, timeout=120.0)
    assert replayed is not None
    measured = [times(one) for one in replayed.timelines]
    middle = [median(column) for column in zip(*measured, strict=True)]
    return [Row(*row) for row in zip(asked, times(timeline), middle, strict=True)]


def scheduled(groups: Sequence[Sequence[int]], asked: Sequence[Asked]) -> Schedule:
    """All that is *asked*, and before each a few bytes of all, so that nobody begins early."""
    ops = tuple(
        op
        for number, (kind, nbytes, algorithm) in enumerate(asked)
        for op in (
            Collective(name=f"barrier {number}", kind="all_reduce", over="all", nbytes=4),
            Collective(name=f"{kind} {number}", kind=kind, over="all", nbytes=nbytes, algorithm=algorithm),
        )
    )
    ranks = sum(map(len, groups))
    mesh = Mesh(ranks, {"all": Axis(tuple(map(tuple, groups)))})
    return Schedule(mesh, (Program("rank", ops),), (0,) * ranks)


def times(timeline: Timeline) -> list[float]:
    """Seconds of each op, over all ranks."""
    ends: dict[str, list[float]] = {}
    begins: dict[str, list[float]] = {}
    for rank in range(timeline.world_size):
        for span in timeline.spans(rank):
            begins.setdefault(span.op.name, []).append(span.begin)
            ends.setdefault(span.op.name, []).append(span.end)
    names = [op.name for op in timeline.schedule.programs[0].ops][1::2]
    return [max(ends[name]) - max(begins[name]) for name in names]
