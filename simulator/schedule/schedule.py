"""A schedule says what every rank does: one program for each role, and the program that each rank runs; and schedules
of several jobs side by side.

The semantics: an op is ready when it is the first op of its stream that has not ended, and all ops that its `after`
names have ended. A ready computation begins. A communication begins when it is ready on all partners, which
`simulator.schedule.matching` finds. A *stream* is an order of issue, nothing else. So a collective on the stream
``compute`` blocks computations, and a collective on another stream overlaps them.

Schedules of several jobs side by side: one schedule whose ranks are those of the first job, then of the second...

Axes of one name hold the groups of all jobs; no group has ranks of two. So nothing is renamed, and no op of one job
meets an op of another. A job repeats its step as often as it is told: its programs are written out that many times,
because the steps of jobs differ in length, and no job waits for another at the end of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np

from clustersim.simulator.hardware.array_rows import Rows, WholeNumbers
from clustersim.simulator.hardware.hashing import Indices, distinct
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.matching import Matching
from clustersim.simulator.schedule.mesh import NOWHERE, Axis, Mesh
from clustersim.simulator.schedule.ops import Compute, Delay, Op
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER
from clustersim.simulator.schedule.program import Program, TemplatedOps


@dataclass(frozen=True)
class Schedule:
    """*programs*, and the index of the program that each rank of the *mesh* runs; repeated *steps* times.

    *batches*: the number of global batches in one run of the programs. It is more than 1 for an asynchronous pipeline
    order, which has optimizer steps between the batches, and for a period of local steps. The first *filling* batches
    fill the pipeline, the last *draining* ones drain it; neither is measured. *staggered*: no rank waits for all others
    at the end of a step, so ranks end steps one after the other. *independent*: GPU ranks go
    through the batches each in its own time, as with an asynchronous parameter server.
    """

    mesh: Mesh
    programs: tuple[Program, ...]
    program_of: Sequence[int]
    steps: int = 1
    batches: int = 1
    filling: int = 0
    draining: int = 0
    staggered: bool = False
    independent: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.program_of, WholeNumbers):
            object.__setattr__(self, "program_of", WholeNumbers(np.array(self.program_of, np.int64)))
        if len(self.program_of) != self.mesh.world_size:
            raise ScheduleError(
                f"program_of names {len(self.program_of)} ranks, but the mesh has {self.mesh.world_size}"
            )

    @property
    def measured_by_span(self) -> bool:
        """True if single spans say where the measured steps begin and end, not the end of the first step of all."""
        return self.filling + self.draining > 0 or (self.staggered and self.steps > 1)

    @property
    def program_numbers(self) -> Indices:
        """`program_of` as an array."""
        assert isinstance(self.program_of, WholeNumbers)
        return self.program_of.array

    @cached_property
    def matching(self) -> Matching:
        """Which ops of different ranks belong to one communication."""
        return Matching(self.programs)

    def program(self, rank: int) -> Program:
        """The program that *rank* runs."""
        return self.programs[self.program_of[rank]]

    def map_programs(self, change: Callable[[Program], Program]) -> Schedule:
        """Replace every program by what *change* returns for it."""
        return replace(self, programs=tuple(change(program) for program in self.programs))

    def replicate(self, axis: str, size: int) -> Schedule:
        """*size* copies of all ranks, joined by a new, slowest *axis*."""
        return replace(
            self, mesh=self.mesh.replicated(axis, size), program_of=WholeNumbers(np.tile(self.program_numbers, size))
        )

    def arranged(self, *axes: str) -> Schedule:
        """The same schedule with its ranks numbered along *axes*, fastest first. Ranks on none of them come last.

        Raises `ScheduleError` if two ranks have the same coordinates on *axes*.
        """
        world_size = self.mesh.world_size
        chosen = [self.mesh.axes[name].places(world_size)[1] for name in axes]
        on_axes = np.any([places != NOWHERE for places in chosen], axis=0)
        if len(set(zip(*(places[on_axes].tolist() for places in chosen), strict=True))) < on_axes.sum():
            raise ScheduleError(f"axes {', '.join(axes)} give two ranks the same coordinates")
        sequence = np.lexsort((*chosen, ~on_axes))
        number_of = np.empty(world_size, np.int64)
        number_of[sequence] = np.arange(world_size)
        return replace(
            self,
            mesh=self.mesh.relabelled(number_of.tolist()),
            program_of=WholeNumbers(self.program_numbers[sequence]),
        )

    def degrees(self, axis: str) -> list[int]:
        """For each program, the size of the groups of its ranks on *axis*; 1 if they are not on it.

        Raises `ScheduleError` if these groups differ in size.
        """
        if axis not in self.mesh.axes:
            return [1] * len(self.programs)
        numbers = self.mesh.axes[axis].places(self.mesh.world_size)[0]
        lengths, found = np.append(self.mesh.axes[axis].lengths, 1), []
        for index, program in enumerate(self.programs):
            sizes = distinct(lengths[distinct(numbers[self.ranks_of(index)])]).tolist()
            if len(sizes) > 1:
                raise ScheduleError(f"{program.role} runs in groups of different size on {axis}: {sizes}")
            found.append(sizes[0] if sizes else 1)
        return found

    def ops(self) -> Iterator[tuple[Program, Op]]:
        """Every op of every program, once for all ranks that run it."""
        return ((program, op) for program in self.programs for op in program.ops)

    def ranks_of(self, program: int) -> Indices:
        """The ranks that run the program of that index, ascending."""
        return self._ranks[program]

    @cached_property
    def _ranks(self) -> list[Indices]:
        return [np.flatnonzero(self.program_numbers == program) for program in range(len(self.programs))]


@dataclass(frozen=True)
class Part:
    """A job: *schedule*, repeated *times*, which begins at *start* (s).

    *alike*: jobs with the same *alike*, *times* and *start* run the same programs, so that their ranks may be equal.
    """

    schedule: Schedule
    times: int
    start: float = 0.0
    alike: Hashable = None


@dataclass(frozen=True)
class SideBySide:
    """The joint *schedule* of *parts*; *first_rank*: of each part, then the number of all ranks."""

    schedule: Schedule
    parts: tuple[Part, ...]
    first_rank: tuple[int, ...]

    def ranks(self, part: int) -> range:
        """The ranks of the part of that number."""
        return range(self.first_rank[part], self.first_rank[part + 1])

    def step_of(self, part: int, rank: int, ops: Indices) -> Indices:
        """The number of the step of each of *ops*, indices in the program of *rank*; -1: before the first step."""
        own = len(self.parts[part].schedule.program(rank - self.first_rank[part]).ops)
        program = self.schedule.program(rank)
        before = len(program.ops) - own * self.parts[part].times
        return np.asarray(np.where(ops < before, -1, (ops - before) // max(1, own)))


def side_by_side(parts: Sequence[Part]) -> SideBySide:
    """Return the joint schedule of *parts*. Raises `ScheduleError` for a schedule whose steps cannot be repeated."""
    programs: list[Program] = []
    first_program: dict[Hashable, int] = {}
    program_of: list[int] = []
    first_rank = [0]
    for number, part in enumerate(parts):
        _check(part.schedule)
        key = (number,) if part.alike is None or _uses_servers(part.schedule) else (part.alike, part.times, part.start)
        if key not in first_program:
            first_program[key] = len(programs)
            programs += [repeated(program, part.times, part.start, f"{number}.") for program in part.schedule.programs]
        program_of += [first_program[key] + own for own in part.schedule.program_of]
        first_rank.append(len(program_of))
    mesh = Mesh(len(program_of), _axes(parts, first_rank))
    return SideBySide(Schedule(mesh, tuple(programs), tuple(program_of)), tuple(parts), tuple(first_rank))


def _check(schedule: Schedule) -> None:
    if schedule.filling or schedule.draining or schedule.independent:
        raise ScheduleError("an asynchronous schedule fills and drains; its steps cannot be repeated beside other jobs")


def _uses_servers(schedule: Schedule) -> bool:
    return any(op.at_server is not None for program in schedule.programs for op in program.distinct())


def _axes(parts: Sequence[Part], first_rank: Sequence[int]) -> dict[str, Axis]:
    """The groups of all *parts* by axis; the ranks of each begin at its first one."""
    moved: dict[str, list[Axis]] = {}
    for part, first in zip(parts, first_rank, strict=False):
        number_of = range(first, first + part.schedule.mesh.world_size)
        for name, axis in part.schedule.mesh.axes.items():
            moved.setdefault(name, []).append(axis.relabelled(number_of))
    return {name: _joined(several) for name, several in moved.items()}


def _joined(several: Sequence[Axis]) -> Axis:
    if len(several) == 1:
        return several[0]
    rows = [axis.groups for axis in several]
    if len({axis.members.shape[1] for axis in several}) == 1 and all(isinstance(own, Rows) for own in rows):
        return Axis(Rows(np.concatenate([axis.members for axis in several])))
    return Axis(tuple(chain.from_iterable(rows)))


def repeated(program: Program, times: int, start: float = 0.0, servers: str = "") -> Program:
    """Return *program* written out *times* in a row, each stream waiting until *start* (s) before its first op.

    *servers* goes before the names of its servers, which a whole schedule shares.
    """
    ops = program.templated
    templates = [
        tuple(_of_step(op, step, servers) for op in template) for step in range(times) for template in ops.templates
    ]
    which = np.concatenate([ops.which + step * len(ops.templates) for step in range(times)])
    micro_batches = np.tile(ops.micro_batches, times)
    if start:
        streams = dict.fromkeys(op.stream for op in program.distinct())
        templates.append(tuple(Delay(name=f"start.{one}", stream=one, seconds=start) for one in streams))
        which = np.concatenate([[len(templates) - 1], which])
        micro_batches = np.concatenate([[PLACEHOLDER], micro_batches])
    return replace(program, ops=TemplatedOps.from_columns(templates, which, micro_batches))


def _of_step(op: Op, step: int, servers: str) -> Op:
    """Return *op* in step number *step*, under names of its own."""
    named = replace(op, name=f"{step}:{op.name}", after=tuple(f"{step}:{name}" for name in op.after))
    if op.releases is not None:
        named = replace(named, releases=servers + op.releases)
    if isinstance(named, Compute) and named.server is not None:
        named = replace(named, server=servers + named.server)
    return named
