"""The parallelisms of a training step in the order in which they apply, and the mesh that their degrees make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod

from clustersim.simulator.hardware.array_rows import WholeNumbers
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.mesh import Axis, Layout, Mesh, family
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import Parallelism
from clustersim.workloads.parallelism.context import Context
from clustersim.workloads.parallelism.data import Data
from clustersim.workloads.parallelism.domain import Domain
from clustersim.workloads.parallelism.expert import Expert
from clustersim.workloads.parallelism.pipeline import Pipeline
from clustersim.workloads.parallelism.tensor import Tensor

PARALLELISMS: tuple[type[Parallelism], ...] = (Tensor, Domain, Context, Expert, Pipeline, Data)
"""In the order in which they apply, inner axes first. A user's own apply before the pipeline."""

RANK_ORDER = (Tensor.axis, Data.axis, Pipeline.axis)
"""The axes along which ranks are numbered by default, fastest first: Megatron's order."""


def composed(built_in: Mapping[str, Parallelism], own: Mapping[str, Parallelism]) -> dict[str, Parallelism]:
    """*built_in*, in the order of `PARALLELISMS`, with the user's *own* at their place."""
    items, place = list(built_in.items()), PARALLELISMS.index(Pipeline)
    return dict([*items[:place], *own.items(), *items[place:]])


def numbered_along(parts: Sequence[Parallelism]) -> list[str]:
    """The default rank order of *parts*: `RANK_ORDER`, with the user's own axes before the replicas."""
    own = [part.axis for part in parts if part.axis not in RANK_ORDER and part.degrees(1)]
    place = RANK_ORDER.index(REPLICAS)
    return [*RANK_ORDER[:place], *own, *RANK_ORDER[place:]]


def layouts(parts: Sequence[Parallelism], gpus: int, rank_order: Sequence[str]) -> tuple[Layout, ...]:
    """The layout of all ranks, with axes in *rank_order*; one for each pipeline rank if these have unequal replicas.

    *gpus*: how many there are; a degree may depend on it. Raises `ScheduleError` for replicas by pipeline rank that do
    not fit.
    """
    every: dict[str, int] = {}
    for own in _degrees(parts, gpus).values():
        every |= own
    ordered = {axis: every[axis] for name in rank_order for axis in every if family(axis) == name}
    by_stage = next((part.replicas_by_stage for part in parts if isinstance(part, Data)), None)
    return (Layout(ordered),) if by_stage is None else _stage_layouts(ordered, by_stage)


def degrees(parts: Sequence[Parallelism], gpus: int) -> dict[str, int]:
    """The degree of each of *parts* by the name of its axis, all axes of a parallelism together; none adds no ranks."""
    return {axis: prod(own.values()) for axis, own in _degrees(parts, gpus).items() if own}


def _degrees(parts: Sequence[Parallelism], gpus: int) -> dict[str, Mapping[str, int]]:
    found: dict[str, Mapping[str, int]] = {}
    for part in parts:
        found[part.axis] = part.degrees(gpus // prod(degree for own in found.values() for degree in own.values()))
    return found


def _stage_layouts(degrees: Mapping[str, int], replicas_by_stage: Sequence[int]) -> tuple[Layout, ...]:
    """A layout for each pipeline rank, their ranks one after the other."""
    if len(replicas_by_stage) != degrees[PIPELINE]:
        given = len(replicas_by_stage)
        raise ScheduleError(f"lists the replicas of {given} pipeline ranks, but {PIPELINE} is {degrees[PIPELINE]}")
    if list(degrees)[-1] != PIPELINE:
        raise ScheduleError(f"replicas by pipeline rank need a rank_order that ends with {PIPELINE}")
    made: list[Layout] = []
    for replicas in replicas_by_stage:
        first = sum(layout.size for layout in made)
        own = {axis: replicas if axis == REPLICAS else n for axis, n in degrees.items() if axis != PIPELINE}
        made.append(Layout(own, range(first, first + prod(own.values()))))
    return tuple(made)


def on_layouts(schedule: Schedule, several: Sequence[Layout], parts: Sequence[Parallelism]) -> Schedule:
    """*schedule*, which has one program for each coordinate of ``pp``, on the ranks of *several* layouts."""
    mesh = Mesh.of(*several)
    if PIPELINE not in mesh.axes:
        mesh = mesh.extended(0, {PIPELINE: _pipelines(several)})
    # a breakdown counts a moment for the first axis with a transfer under way: the pipeline, then inner before outer
    order = [*inner_axes(several), REPLICAS]
    mesh = replace(mesh, axes={name: mesh.axes[name] for name in sorted(mesh.axes, key=order.index)})
    for part in parts:
        mesh = mesh.extended(0, part.further_axes(mesh))
    coordinates = mesh.axes[PIPELINE].places(mesh.world_size)[1]
    return replace(schedule, mesh=mesh, program_of=WholeNumbers(coordinates))


def merged(schedules: Sequence[Schedule], axis: str) -> Schedule:
    """One schedule in which each rank runs what the schedule of its coordinate on *axis* has for it.

    They have the same mesh; equal ones may be one object.
    """
    places = schedules[0].mesh.axes[axis].places(schedules[0].mesh.world_size)[1].tolist()
    numbers: dict[tuple[int, int], int] = {}
    programs: list[Program] = []
    program_of: list[int] = []
    for rank, place in enumerate(places):
        own = schedules[max(0, place)]
        key = id(own), own.program_of[rank]
        if key not in numbers:
            numbers[key] = len(programs)
            program = own.programs[own.program_of[rank]]
            programs.append(replace(program, role=f"{program.role}, {axis} {place}"))
        program_of.append(numbers[key])
    return replace(schedules[0], programs=tuple(programs), program_of=tuple(program_of))


def _pipelines(stages: Sequence[Layout]) -> Axis:
    """The axis of stages with unequal replicas: a group has all replicas of all stages, stage by stage."""
    replicas = (stage.groups(REPLICAS) for stage in stages)
    return Axis(tuple(tuple(chain.from_iterable(groups)) for groups in zip(*replicas, strict=True)))


def weight_axes(several: Sequence[Layout], parts: Sequence[Parallelism]) -> list[str]:
    """The axes that join ranks of a replica with different weights."""
    equal = {axis for part in parts if part.same_weights for axis in part.degrees(1)}
    return [axis for axis in inner_axes(several) if axis not in equal]


def inner_axes(several: Sequence[Layout]) -> list[str]:
    """The axes that join the ranks of a replica: the pipeline, then all others but the replicas."""
    return [PIPELINE, *(axis for axis in several[0].degrees if axis not in (PIPELINE, REPLICAS))]
