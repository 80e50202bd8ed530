"""What the ranks of a trace did in one step: work with durations and dependencies, however the trace was written; and
the ranks of its replay, with as many data-parallel replicas as are asked for.

Equal positions of a data-parallel group are replicas. More of them repeat those of the trace in turn; a rank without a
trace does what a replica with one does.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import NamedTuple

from clustersim.scenarios.real_traces.pieces_of_work import Shape
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import TraceError
from clustersim.simulator.schedule.mesh import Axis, Mesh


class TracedExchange(NamedTuple):
    """A communication: its *kind*, the bytes of the full vector (None: not known), and the *group*, its ranks in order.

    *name*: the process group. *source* and *target*: the ranks of a message, and *tag* what tells it from others.
    """

    kind: str
    nbytes: float | None
    group: tuple[int, ...]
    name: str = ""
    source: int = -1
    target: int = -1
    tag: int = 0

    @property
    def is_message(self) -> bool:
        """True for a send or a receive."""
        return self.kind in ("send", "recv")


class TracedWork(NamedTuple):
    """Work of *seconds* on *stream*, *delay* seconds after all of the work numbered *after* has ended.

    *part*: a phase of computation, ``copy``, ``host``, or the kind of communication. *kernel_class*, *shape* and
    *precision*: what scales it to another GPU. *launched*: the number of its launch in `RankWork.launches`; None if the
    trace does not tell.
    """

    name: str
    part: str
    stream: str
    seconds: float
    after: tuple[int, ...] = ()
    delay: float = 0.0
    exchange: TracedExchange | None = None
    kernel_class: str = ""
    shape: Shape | None = None
    precision: str = ""
    launched: int | None = None


class TracedLaunch(NamedTuple):
    """A launch by the host: *delay* seconds after the launch before and after the work that the host *awaited*."""

    delay: float
    awaited: int | None = None


@dataclass(frozen=True)
class RankWork:
    """The *works* of *rank* by their begin, its *launches*, and the *tail*: seconds from the last one to the end."""

    rank: int
    works: tuple[TracedWork, ...]
    launches: tuple[TracedLaunch, ...] = ()
    tail: float = 0.0


@dataclass(frozen=True)
class TracedStep:
    """One step of a run of *world_size* ranks, the work *by_rank*, which took *seconds* (0: not known).

    *device*: the name of the GPU in the trace, empty if unknown. *source*: where it was read. *on_gpu*: the trace
    has kernels of a GPU.
    """

    by_rank: Mapping[int, RankWork]
    world_size: int
    seconds: float
    device: str
    source: str
    on_gpu: bool = True

    @property
    def exchanges(self) -> Sequence[TracedExchange]:
        """The communications of all ranks."""
        return [work.exchange for own in self.by_rank.values() for work in own.works if work.exchange is not None]


Group = tuple[int, ...]

_DATA = re.compile(r"dp|data|replica", re.IGNORECASE)
_OTHERS = re.compile(r"^message|tp|pp|cp|ep|tensor|pipe|context|expert|sequence", re.IGNORECASE)
"""Names of groups of replicas, and of other parallelisms."""


@dataclass(frozen=True)
class RepeatedRanks:
    """The ranks of *step* with *degree* data-parallel replicas; 0: as many as in the trace. *dp_group*: their group."""

    step: TracedStep
    degree: int = 0
    dp_group: str = ""

    @cached_property
    def families(self) -> dict[str, tuple[Group, ...]]:
        """The groups of the trace by axis: equal in name or, without one, in size and distance of their ranks.

        A group that ranks without a trace have, too, stands for those of all replicas.
        """
        found: dict[str, dict[Group, None]] = {}
        shapes: dict[tuple[int, int, bool], list[str]] = {}
        for one in self.step.exchanges:
            if len(one.group) < 2:
                continue
            names = shapes.setdefault((len(one.group), one.group[1] - one.group[0], one.is_message), [])
            if any(one.group in found[name] for name in names):
                continue
            # a rank is in one group of an axis only
            free = (name for name in names if not set(one.group) & {rank for group in found[name] for rank in group})
            name = next(free, None)
            if name is None:
                name = _unused(names[0] if names else _axis_name(one), found)
                names.append(name)
            found.setdefault(name, {})[one.group] = None
        return {name: tuple(groups) for name, groups in found.items()}

    @cached_property
    def lines(self) -> tuple[Group, ...]:
        """The groups of replicas of the trace; each rank is in one of them."""
        groups = self._data_groups()
        if not groups:
            return tuple((rank,) for rank in range(self.step.world_size))
        size, distance = len(groups[0]), groups[0][1] - groups[0][0]
        regular = all(group == tuple(range(group[0], group[0] + size * distance, distance)) for group in groups)
        if not regular or self.step.world_size % (size * distance):
            raise TraceError(
                f"{self.step.source}: the data-parallel groups are irregular, e.g. {list(groups[0][:8])}; only equally "
                "spaced ranks can be replayed"
            )
        blocks = range(0, self.step.world_size, size * distance)
        return tuple(
            tuple(range(begin + inner, begin + inner + size * distance, distance))
            for begin in blocks
            for inner in range(distance)
        )

    def _data_groups(self) -> Sequence[Group]:
        if self.dp_group:
            if self.dp_group not in self.families:
                there = ", ".join(self.families) or "none"
                raise TraceError(f'{self.step.source}: there is no group "{self.dp_group}"; there are: {there}')
            return self.families[self.dp_group]
        named = [name for name in self.families if _DATA.search(name)]
        collective = [name for name in self.families if not _OTHERS.search(name)]
        chosen = named or (collective if len(collective) == 1 else [])
        if len(chosen) == 1:
            return self.families[chosen[0]]
        if self.degree > 1:
            there = ", ".join(f"{name} ({len(groups[0])} ranks)" for name, groups in self.families.items())
            raise TraceError(
                f"{self.step.source}: no group of the trace is known to be data parallel; give workload.dp_group, one "
                f"of {there}"
                if there
                else f"{self.step.source}: the trace has no collectives, so that no replicas can be added"
            )
        return ()

    @property
    def traced(self) -> int:
        """The number of replicas in the trace."""
        return len(self.lines[0])

    @property
    def replicas(self) -> int:
        """The number of replicas that are replayed."""
        return self.degree or self.traced

    @property
    def world_size(self) -> int:
        """The number of ranks that are replayed."""
        return self.step.world_size // self.traced * self.replicas

    def check(self) -> None:
        """Raise `TraceError` if the replicas are no multiple of those of the trace, or ranks have no trace."""
        if self.replicas % self.traced:
            raise TraceError(
                f"dp {self.replicas} is not a multiple of the {self.traced} replicas of the trace; try "
                f"{max(1, self.replicas // self.traced) * self.traced}"
            )
        missing = [line for line in self.lines if not any(rank in self.step.by_rank for rank in line)]
        if missing:
            ranks = ", ".join(str(line[0]) for line in missing[:8])
            raise TraceError(
                f"{self.step.source}: of the {self.step.world_size} ranks, rank {ranks}"
                f"{' and others' if len(missing) > 8 else ''} and their replicas have no trace; give a trace of each"
            )

    @cached_property
    def _spread(self) -> dict[int, Group]:
        """By rank of the trace the ranks that repeat it."""
        size, wanted = self.traced, self.replicas
        found = {}
        for line in self.lines:
            distance = line[1] - line[0] if size > 1 else self.step.world_size
            inner, outer = line[0] % distance, line[0] // (distance * size)
            for place, rank in enumerate(line):
                turns = range(place, wanted, size)
                found[rank] = tuple(inner + distance * (turn + wanted * outer) for turn in turns)
        return found

    def template(self) -> list[int]:
        """Return, for each replayed rank, the rank with a trace whose work it does."""
        found = [0] * self.world_size
        for line in self.lines:
            known = [rank for rank in line if rank in self.step.by_rank]
            for place, rank in enumerate(line):
                source = rank if rank in self.step.by_rank else known[place % len(known)]
                for one in self._spread[rank]:
                    found[one] = source
        return found

    def mesh(self) -> Mesh:
        """Return the mesh of the replayed ranks, with an axis for each family of groups."""
        axes = {}
        for name, groups in self.families.items():
            made = dict.fromkeys(one for group in self._all(groups) for one in self._replayed(group))
            axes[name] = Axis(tuple(made))
        return Mesh(self.world_size, axes)

    def _all(self, groups: Sequence[Group]) -> Iterator[Group]:
        """Yield *groups*, and those of ranks without a trace: the same, moved along the lines of replicas."""
        place = {rank: (line, number) for line in self.lines for number, rank in enumerate(line)}
        for group in groups:
            yield group
            if {place[rank][1] for rank in group} == {place[group[0]][1]}:
                for number in range(self.traced):
                    yield tuple(place[rank][0][number] for rank in group)
        whole = {line[0]: line for line in self.lines}
        if any(group in self.lines for group in groups):
            yield from whole.values()

    def _replayed(self, group: Group) -> Iterator[Group]:
        """Yield the replayed groups of *group*: one that spans all replicas grows, another one is repeated."""
        members = set(group)
        touched = [line for line in self.lines if members & set(line)]
        if all(members >= set(line) for line in touched):
            yield tuple(sorted(one for rank in group for one in self._spread[rank]))
        else:
            yield from zip(*(self._spread[rank] for rank in group), strict=True)


def _axis_name(one: TracedExchange) -> str:
    """Return the name of the axis of *one*: without dots, which part families."""
    return "message" if one.is_message else re.sub(r"[^A-Za-z0-9_-]+", "_", one.name).strip("_") or "dp"


def _unused(name: str, taken: Container[str]) -> str:
    """Return *name*, or the next of its family that is not *taken*."""
    return name if name not in taken else next(one for n in count(2) if (one := f"{name}.{n}") not in taken)
