"""A schedule says what every rank does: one program for each role, and the program that each rank runs.

The semantics: an op is ready when it is the first op of its stream that has not ended, and all ops that its `after`
names have ended. A ready computation begins. A communication begins when it is ready on all partners, which
`simulator.schedule.matching` finds. A *stream* is an order of issue, nothing else. So a collective on the stream
``compute`` blocks computations, and a collective on another stream overlaps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from clustersim.simulator.hardware.hashing import Indices, distinct
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.mesh import NOWHERE, Mesh
from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.program import Program


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
    program_of: tuple[int, ...]
    steps: int = 1
    batches: int = 1
    filling: int = 0
    draining: int = 0
    staggered: bool = False
    independent: bool = False

    def __post_init__(self) -> None:
        if len(self.program_of) != self.mesh.world_size:
            raise ScheduleError(
                f"program_of names {len(self.program_of)} ranks, but the mesh has {self.mesh.world_size}"
            )

    @property
    def measured_by_span(self) -> bool:
        """True if single spans say where the measured steps begin and end, not the end of the first step of all."""
        return self.filling + self.draining > 0 or (self.staggered and self.steps > 1)

    @cached_property
    def program_numbers(self) -> Indices:
        """`program_of` as an array."""
        return np.array(self.program_of, np.int64)

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
            program_of=tuple(self.program_of[rank] for rank in sequence.tolist()),
        )

    def degrees(self, axis: str) -> list[int]:
        """For each program, the size of the groups of its ranks on *axis*; 1 if they are not on it.

        Raises `ScheduleError` if these groups differ in size.
        """
        if axis not in self.mesh.axes:
            return [1] * len(self.programs)
        numbers = self.mesh.axes[axis].places(self.mesh.world_size)[0]
        lengths = np.append(self.mesh.axes[axis].lengths, 1)[numbers]
        programs = self.program_numbers
        found = []
        for index, program in enumerate(self.programs):
            sizes = distinct(lengths[programs == index]).tolist()
            if len(sizes) > 1:
                raise ScheduleError(f"{program.role} runs in groups of different size on {axis}: {sizes}")
            found.append(sizes[0] if sizes else 1)
        return found

    def ops(self) -> Iterator[tuple[Program, Op]]:
        """Every op of every program, once for all ranks that run it."""
        return ((program, op) for program in self.programs for op in program.ops)

    def ranks_of(self, program: int) -> Sequence[int]:
        """The ranks that run the program of that index, ascending."""
        ranks: list[int] = np.flatnonzero(self.program_numbers == program).tolist()
        return ranks
