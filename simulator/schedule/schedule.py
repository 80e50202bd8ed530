"""A schedule says what every rank does: one program for each distinct role, and which rank runs which.

Semantics, whole: an op begins when it heads its stream and all of `after` have ended; a communication also waits for
its partners, which `simulator.schedule.matching` finds. A *stream* is an order of issue, nothing else. A collective on
the ``compute`` stream blocks; on any other stream it overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.errors import ScheduleError
from simulator.schedule.mesh import NOWHERE, Mesh
from simulator.schedule.ops import Op
from simulator.schedule.program import Program


@dataclass(frozen=True, slots=True)
class Schedule:
    """*programs*, and for each rank of the *mesh* the index of the one it runs; repeated *steps* times.

    *batches*: how many global batches one run of the programs spans; more than one where the optimizer steps of an
    asynchronous order stand between them. The first *filling* of them fill the pipeline, the last *draining* drain it.
    *staggered*: no rank waits for all others at the end of a step, so that ranks end steps one after the other.
    """

    mesh: Mesh
    programs: tuple[Program, ...]
    program_of: tuple[int, ...]
    steps: int = 1
    batches: int = 1
    filling: int = 0
    draining: int = 0
    staggered: bool = False

    def __post_init__(self) -> None:
        if len(self.program_of) != self.mesh.world_size:
            raise ScheduleError(
                f"program_of names {len(self.program_of)} ranks, but the mesh has {self.mesh.world_size}"
            )

    @property
    def measured_by_span(self) -> bool:
        """True if single spans say where the measured steps begin and end, not the end of the first step of all."""
        return self.batches > 1 or (self.staggered and self.steps > 1)

    def program(self, rank: int) -> Program:
        """The program that *rank* runs."""
        return self.programs[self.program_of[rank]]

    def map_programs(self, change: Callable[[Program], Program]) -> Schedule:
        """Replace every program by what *change* returns for it."""
        return replace(self, programs=tuple(change(program) for program in self.programs))

    def replicate(self, axis: str, size: int) -> Schedule:
        """*size* copies of all ranks, joined by a new, slowest *axis*."""
        return replace(self, mesh=self.mesh.replicated(axis, size), program_of=self.program_of * size)

    def arranged(self, *axes: str) -> Schedule:
        """The same schedule with its ranks numbered along *axes*, fastest first; ranks on none of them stay last.

        Raises `ScheduleError` unless *axes* tell all ranks on them apart.
        """
        world_size = self.mesh.world_size
        chosen = [self.mesh.axes[name].places(world_size)[1] for name in axes]
        on_axes = np.any([places != NOWHERE for places in chosen], axis=0)
        if len(set(zip(*(places[on_axes].tolist() for places in chosen), strict=True))) < on_axes.sum():
            raise ScheduleError(f"axes {', '.join(axes)} do not tell all ranks apart")
        sequence = np.lexsort((*chosen, ~on_axes))
        number_of = np.empty(world_size, np.int64)
        number_of[sequence] = np.arange(world_size)
        return replace(
            self,
            mesh=self.mesh.relabelled(number_of.tolist()),
            program_of=tuple(self.program_of[rank] for rank in sequence.tolist()),
        )

    def degrees(self, axis: str) -> list[int]:
        """For each program, the size of the groups of its ranks on *axis*; 1 if they are not on it.

        Raises `ScheduleError` if these groups differ in size.
        """
        if axis not in self.mesh.axes:
            return [1] * len(self.programs)
        groups = self.mesh.axes[axis].groups
        numbers = self.mesh.axes[axis].places(self.mesh.world_size)[0]
        lengths = np.array([len(group) for group in groups] + [1])[numbers]
        programs = np.array(self.program_of)
        found = []
        for index, program in enumerate(self.programs):
            sizes = np.unique(lengths[programs == index]).tolist()
            if len(sizes) > 1:
                raise ScheduleError(f"{program.role} runs in groups of different size on {axis}: {sizes}")
            found.append(sizes[0] if sizes else 1)
        return found

    def ops(self) -> Iterator[tuple[Program, Op]]:
        """Every op of every program once, however many ranks run it."""
        return ((program, op) for program in self.programs for op in program.ops)

    def ranks_of(self, program: int) -> Sequence[int]:
        """The ranks that run the program of that index, ascending."""
        return [rank for rank, index in enumerate(self.program_of) if index == program]
