"""Memory over time, by category: resident bytes plus those that ops have allocated and not yet freed.

An op allocates when it begins and frees when it ends. Categories that begin with ``host.``, and all those of a rank
on a host, are in the memory of the host; the others in that of the rank's GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.intervals import snapped
from clustersim.simulator.analysis.memory_upper_bound import held_at_most
from clustersim.simulator.analysis.timeline import Columns, Floats, Integers, Timeline, Totals
from clustersim.simulator.hardware.hashing import first_places, representatives_of
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import CATEGORIES
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

_Item = TypeVar("_Item", bound=Hashable)


@dataclass(frozen=True)
class Curve:
    """Bytes held from each of *times* (s) to the next, by category. Frees come before allocations of one moment."""

    times: Floats
    by_category: Mapping[str, Floats]

    @cached_property
    def total(self) -> Floats:
        """Bytes of all categories together."""
        return np.sum(list(self.by_category.values()), axis=0) if self.by_category else np.zeros(len(self.times))

    def highest(self, edges: Floats) -> Curve:
        """Return the curve with only the fullest moment of each bin between *edges* (s, ascending); equal bins merge.

        No maximum is lost, however short it is; the categories are those of that moment.
        """
        # the value at an edge, and all earlier values at the same moment
        standing = np.searchsorted(self.times, edges[:-1], "right") - 1
        begins = np.maximum(np.minimum(standing, np.searchsorted(self.times, edges[:-1], "left")), 0)
        ends = np.searchsorted(self.times, edges[1:], "left")
        ends[-1] = np.searchsorted(self.times, edges[-1], "right")
        spans = zip(begins.tolist(), np.maximum(ends, begins + 1).tolist(), strict=True)
        fullest = np.array([begin + int(self.total[begin:end].argmax()) for begin, end in spans])
        kept = np.flatnonzero(np.diff(fullest, prepend=-1))
        by_category = {name: nbytes[fullest[kept]] for name, nbytes in self.by_category.items()}
        return Curve(edges[kept], by_category)


class Peak(NamedTuple):
    """The peak memory of *rank*: *nbytes* at *time* (s), *by_category*."""

    nbytes: float
    rank: int
    time: float
    by_category: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a training step: the *peak* over all GPUs, the peaks of the stages, that of the fullest host.

    *stages*: bytes by coordinate on the ``pp`` axis; one entry without the axis. *host_bytes*: bytes of all ranks of
    one server.
    """

    peak: Peak
    stages: tuple[float, ...]
    host_bytes: float


@dataclass(frozen=True, slots=True)
class _Table:
    """The *resident* bytes of a program by category, and the bytes that its ops allocate and free.

    *allocates* and *frees*: bytes by op, for each category. *changing*: True for ops that do either.
    """

    resident: Mapping[str, float]
    allocates: Mapping[str, Floats]
    frees: Mapping[str, Floats]
    changing: npt.NDArray[np.bool_]


def _table(program: Program, host: bool) -> _Table:
    named = dict.fromkeys(name for op in program.distinct() for amounts in (op.allocates, op.frees) for name in amounts)
    names = [name for name in named if _on_host(name, program) == host]
    return _Table(
        _resident(program, host),
        {name: program.column(lambda op, n=name: op.allocates.get(n, 0.0)) for name in names},  # type: ignore[misc]
        {name: program.column(lambda op, n=name: op.frees.get(n, 0.0)) for name in names},  # type: ignore[misc]
        program.column(lambda op: any(name in op.allocates or name in op.frees for name in names), np.bool_),
    )


class _Changes(NamedTuple):
    """The ops of one rank that change memory: *moments*, begin and end of each in s, of shape (ops, 2).

    *steps*: for each requested category the bytes allocated at the begin and, negative, freed at the end, of shape
    (2 ops,).
    """

    moments: Floats
    steps: list[Floats]


def curve(timeline: Timeline, rank: int, *, host: bool = False) -> Curve:
    """Return the memory of *rank* over time, on its GPU, or with *host* in the memory of its host."""
    number = timeline.schedule.program_of[rank]
    return _held(timeline, {rank: 1}, {number: _table(timeline.schedule.programs[number], host)})


def _held(timeline: Timeline, ranks: Mapping[int, int], tables: Mapping[int, _Table]) -> Curve:
    """Return the memory of *ranks*, {rank: times}, together; *tables* by the number of the program."""
    of_rank = {rank: tables[timeline.schedule.program_of[rank]] for rank in ranks}
    categories = dict.fromkeys(name for table in of_rank.values() for name in table.allocates)
    parts = [_changes(timeline.of(rank), of_rank[rank], list(categories), n) for rank, n in ranks.items()]
    moments = snapped(np.concatenate([part.moments for part in parts]).ravel(), timeline.makespan)
    steps = [np.concatenate(several) for several in zip(*(part.steps for part in parts), strict=True)]
    order = _order(moments, [len(part.moments) for part in parts], steps)
    by_category = {}
    for name in dict.fromkeys([*(name for table in of_rank.values() for name in table.resident), *categories]):
        resident = sum(n * of_rank[rank].resident.get(name, 0.0) for rank, n in ranks.items())
        by_category[name] = np.full(1 + len(order), resident)
    for name, step in zip(categories, steps, strict=True):
        by_category[name][1:] += np.cumsum(step[order])
    return Curve(np.append(0.0, moments[order]), by_category)


def _changes(own: Columns, table: _Table, categories: Sequence[str], times: int) -> _Changes:
    """Return the changes of a rank with the spans *own*, ordered by end, then begin; bytes are times *times*."""
    kept = np.flatnonzero(table.changing[own.op])
    kept = kept[np.lexsort((own.begin[kept], own.end[kept]))]
    op, steps = own.op[kept], []
    for name in categories:
        steps.append(np.zeros(2 * len(kept)))
        if name in table.allocates:
            steps[-1][::2], steps[-1][1::2] = times * table.allocates[name][op], -times * table.frees[name][op]
    return _Changes(np.column_stack((own.begin[kept], own.end[kept])), steps)


def _order(moments: Floats, lengths: Sequence[int], steps: Sequence[Floats]) -> Integers:
    """Return the order of the *moments* (begin and end of each op in turn) with a change in *steps*.

    The first *lengths[0]* ops are of one rank, and so on. At one instant, ops that began earlier free first. Ops of no
    length follow, the first ones of all ranks, then the second ones: each allocates, then frees. Ops that begin and
    last allocate at the end.
    """
    lasts = moments[::2] < moments[1::2]
    turn = np.column_stack((np.where(lasts, 2, 1), np.where(lasts, 0, 1))).ravel()
    changing = np.flatnonzero(np.any(steps, axis=0)) if steps else np.zeros(0, np.int64)
    keys = [turn[changing], moments[changing]]
    if len(lengths) > 1:
        place = np.concatenate([np.arange(2 * length) for length in lengths])
        keys = [place[changing], *keys]
    return changing[np.lexsort(keys)]


def peak(timeline: Timeline) -> Memory:
    """Return the peak memory of *timeline*. Of equal peaks that of the first rank counts, at its first moment."""
    schedule = timeline.schedule
    if timeline.totals is not None:
        return _memory(schedule, [*_peaks(timeline, timeline.totals)], timeline.totals.host_peak_bytes)
    tables = {number: _table(program, False) for number, program in enumerate(schedule.programs)}
    peaks = []
    for rank in _different(timeline).tolist():
        if schedule.program(rank).on == "gpu":
            nbytes, time, by_category = _highest(_held(timeline, {rank: 1}, tables))
            peaks.append(Peak(nbytes, rank, time, by_category))
    return _memory(schedule, peaks, _host_peak(timeline))


def _different(timeline: Timeline) -> Integers:
    """The first rank of each stage, program and representative."""
    numbers = np.zeros(len(timeline.representative), np.int64)
    ranks = representatives_of(timeline.representative)
    numbers[ranks] = np.arange(len(ranks))
    schedule = timeline.schedule
    roles = stages(schedule) * len(schedule.programs) + schedule.program_numbers
    return first_places(roles * len(ranks) + numbers[timeline.representative])


def _peaks(timeline: Timeline, totals: Totals) -> Iterator[Peak]:
    """Yield the peaks of all GPU ranks, from the totals of their representatives."""
    places = np.searchsorted(totals.ranks, timeline.representative)
    for rank in timeline.gpu_ranks:
        at = places[rank]
        held = dict(zip(CATEGORIES, totals.peak_by_category[at].tolist(), strict=True))
        yield Peak(float(totals.peak_bytes[at]), rank, float(totals.peak_time[at]), held)


def bound(schedule: Schedule, ranks_per_host: int = 1) -> Memory:
    """Return the memory that *schedule* needs by program order, without simulation; times are places in the program.

    Ops are assumed to allocate in program order. Bytes that are freed by an op outside the compute stream count until
    the next op of its stream, or a computation that waits for it. This is an upper bound if no stream runs further
    ahead of the compute stream than in program order. *ranks_per_host* ranks share the memory of one host.
    """
    held = [held_at_most(program, host=False) for program in schedule.programs]
    hosts = [held_at_most(program, host=True).nbytes for program in schedule.programs]
    peaks = []
    for (_, number), rank in _firsts(zip(stages(schedule).tolist(), schedule.program_of, strict=True)).items():
        if schedule.programs[number].on == "gpu":
            nbytes, place, by_category = held[number]
            peaks.append(Peak(nbytes, rank, place, by_category))
    return _memory(schedule, peaks, max(hosts, default=0.0) * ranks_per_host)


def stage_of(schedule: Schedule, rank: int) -> int:
    """Return the coordinate of *rank* on the ``pp`` axis; 0 if it is on none."""
    place = schedule.mesh.axes["pp"].place(rank) if "pp" in schedule.mesh.axes else None
    return place[1] if place else 0


def stages(schedule: Schedule) -> Integers:
    """Return the stage (`stage_of`) of every rank."""
    axis, ranks = schedule.mesh.axes.get("pp"), schedule.mesh.world_size
    return np.zeros(ranks, np.int64) if axis is None else np.maximum(axis.places(ranks)[1], 0)


def _firsts(items: Iterable[_Item]) -> dict[_Item, int]:
    """Return the index of the first of equal *items*."""
    first: dict[_Item, int] = {}
    for place, item in enumerate(items):
        first.setdefault(item, place)
    return first


def _memory(schedule: Schedule, peaks: list[Peak], host_bytes: float) -> Memory:
    of_stage: dict[int, float] = {}
    for one in peaks:
        stage = stage_of(schedule, one.rank)
        of_stage[stage] = max(of_stage.get(stage, 0.0), one.nbytes)
    top = max(peaks, key=lambda one: (one.nbytes, -one.rank), default=Peak(0.0, 0, 0.0, {}))
    return Memory(top, tuple(of_stage[stage] for stage in sorted(of_stage)), host_bytes)


def _on_host(category: str, program: Program) -> bool:
    return program.on == "host" or category.startswith("host.")


def _resident(program: Program, host: bool) -> Mapping[str, float]:
    return {name: nbytes for name, nbytes in program.resident.items() if _on_host(name, program) == host}


def _highest(held: Curve) -> tuple[float, float, Mapping[str, float]]:
    top = int(held.total.argmax())
    return float(held.total[top]), float(held.times[top]), {k: float(v[top]) for k, v in held.by_category.items()}


def _host_peak(timeline: Timeline) -> float:
    """Return the largest sum over the ranks of one server of bytes in the host's memory."""
    users = [_uses_host(program) for program in timeline.schedule.programs]
    if not any(users):
        return 0.0
    servers: dict[int | str, Counter[int]] = {}
    for rank, number in enumerate(timeline.schedule.program_of):
        if users[number]:
            servers.setdefault(_server(timeline, rank), Counter())[int(timeline.representative[rank])] += 1
    tables = {number: _table(program, True) for number, program in enumerate(timeline.schedule.programs)}
    different = {tuple(sorted(ranks.items())) for ranks in servers.values()}
    return max((_highest(_held(timeline, dict(ranks), tables))[0] for ranks in different), default=0.0)


def _uses_host(program: Program) -> bool:
    named = (name for op in program.distinct() for name in (*op.allocates, *op.frees))
    return any(_on_host(name, program) for name in (*program.resident, *named))


def _server(timeline: Timeline, rank: int) -> int | str:
    if timeline.cluster is None or not timeline.devices:
        return f"rank {rank}"
    return timeline.cluster.node_of(timeline.devices[rank])
