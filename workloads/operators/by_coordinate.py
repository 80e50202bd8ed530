"""What differs with the coordinate of a rank on an axis: kernels, and shifts to a neighbour.

A causal mask gives some ranks more scores than others, and a `Send` names its receiver. Yet all ranks of a group run
one program until all passes are done: kernels are `KernelByCoordinate`, and a shift stays relative. Then each
coordinate of the axis gets a program of its own (`with_neighbours`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Compute, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule

NO_KERNEL = Kernel(launches=0)
"""Stands where a rank has nothing to compute; it is left out."""


@dataclass(frozen=True, slots=True)
class KernelByCoordinate(Kernel):
    """One kernel of *each* coordinate on the axis *over*. Its own fields are the mean of these."""

    over: str = ""
    each: tuple[Kernel, ...] = ()


def by_coordinate(over: str, each: Sequence[Kernel]) -> Kernel:
    """The kernel of *each* coordinate on the axis *over* as one kernel; a plain kernel if all are equal.

    >>> mean = by_coordinate("cp", [Kernel(nbytes=2.0), Kernel(nbytes=4.0, accesses=2.0)])
    >>> mean.nbytes, mean.accesses
    (3.0, 1.0)
    """
    if len(set(each)) == 1:
        return each[0]
    some = next(kernel for kernel in each if kernel != NO_KERNEL)
    shape = some.shape
    if shape is not None:
        batch, rows, _, depth = shape
        products = sum(prod(kernel.shape) for kernel in each if kernel.shape) / len(each)
        shape = (batch, rows, int(products / (batch * rows * depth)), depth)
    return KernelByCoordinate(
        flops=sum(kernel.flops for kernel in each) / len(each),
        nbytes=sum(kernel.nbytes for kernel in each) / len(each),
        shape=shape,
        precision=some.precision,
        launches=some.launches,
        accesses=sum(kernel.accesses for kernel in each) / len(each),
        attention=some.attention,
        operation=some.operation,
        over=over,
        each=tuple(each),
    )


def axes(op: Op) -> Iterator[str]:
    """The axes on which kernels of *op* differ."""
    if isinstance(op, Compute):
        yield from (kernel.over for kernel in op.kernels if isinstance(kernel, KernelByCoordinate))


def at_coordinate(op: Op, axis: str, coordinate: int) -> Op:
    """*op* with the kernels of the rank at *coordinate* on *axis*."""
    if not isinstance(op, Compute) or axis not in axes(op):
        return op
    own = (
        _kernel_at(kernel, coordinate) if isinstance(kernel, KernelByCoordinate) and kernel.over == axis else kernel
        for kernel in op.kernels
    )
    return changed(op, kernels=tuple(kernel for kernel in own if kernel != NO_KERNEL))


def _kernel_at(kernel: KernelByCoordinate, coordinate: int) -> Kernel:
    own = kernel.each[coordinate]
    return own if own == NO_KERNEL else changed(own, operation=kernel.operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift(Op):
    """*nbytes* along the axis *over* by *distance*, modulo the size of the group unless it does not wrap."""

    over: str
    distance: int
    nbytes: float
    wraps: bool = True

    def _what(self) -> str:
        return f"shift {self.nbytes:g} B by {self.distance:+d} over {self.over}"

    @property
    def step(self) -> int:
        """From the coordinate of a rank to that of its peer."""
        raise NotImplementedError

    def happens(self, coordinate: int, size: int) -> bool:
        """True if the rank at *coordinate* in a group of *size* has a peer."""
        return self.wraps or coordinate + self.step in range(size)

    def at(self, coordinate: int, size: int) -> Op:
        """The op of the rank at *coordinate* in a group of *size*."""
        raise NotImplementedError


class ShiftSend(Shift):
    """The sender's side."""

    @property
    def step(self) -> int:
        """Forward."""
        return self.distance

    def at(self, coordinate: int, size: int) -> Send:
        """A send to the rank *distance* further on."""
        return Send(**_common(self), peer=(coordinate + self.distance) % size)


class ShiftRecv(Shift):
    """The receiver's side."""

    @property
    def step(self) -> int:
        """Backward."""
        return -self.distance

    def at(self, coordinate: int, size: int) -> Recv:
        """A receive from the rank *distance* before."""
        return Recv(**_common(self), peer=(coordinate - self.distance) % size)


def _common(op: Shift) -> dict[str, Any]:
    names = ("name", "action", "layer", "stream", "after", "allocates", "frees", "over", "nbytes")
    return {name: getattr(op, name) for name in names}


def with_neighbours(schedule: Schedule) -> Schedule:
    """*schedule* with a `Send` or `Recv` in place of each `Shift`. Applied after all passes.

    A kernel that differs with the coordinate on an axis (`by_coordinate`) is replaced by that of the rank. Raises
    `ScheduleError` for a shift over an axis that the mesh does not have, or among fewer than two ranks.
    """
    for axis in dict.fromkeys(axis for program in schedule.programs for axis in _axes(program)):
        schedule = _along(schedule, axis)
    return schedule


def _axes(program: Program) -> Iterator[str]:
    for op in program.distinct(Shift, Compute):
        if isinstance(op, Shift):
            yield op.over
        else:
            yield from axes(op)


def _along(schedule: Schedule, axis: str) -> Schedule:
    """*schedule* with the shifts over *axis* resolved: one program for each (program, coordinate, group size)."""
    shifting = [axis in set(_axes(program)) for program in schedule.programs]
    if axis not in schedule.mesh.axes:
        raise ScheduleError(f"an operator shifts over {axis}; the axes are {', '.join(schedule.mesh.axes)}")
    groups = schedule.mesh.axes[axis]
    numbers: dict[tuple[int, int, int], int] = {}
    programs: list[Program] = []
    program_of: list[int] = []
    for rank, number in enumerate(schedule.program_of):
        place = groups.place(rank) if shifting[number] else None
        key = (number, 0, 1) if place is None else (number, place[1], len(groups.groups[place[0]]))
        if key not in numbers:
            numbers[key] = len(programs)
            program = schedule.programs[number]
            programs.append(_program_at(program, axis, *key[1:]) if shifting[number] else program)
        program_of.append(numbers[key])
    return replace(schedule, programs=tuple(programs), program_of=tuple(program_of))


def _program_at(program: Program, axis: str, coordinate: int, size: int) -> Program:
    if size < 2:
        raise ScheduleError(f"{program.role} shifts over {axis}, but is alone on that axis")

    shifts = (op for op in program.distinct() if isinstance(op, Shift) and op.over == axis)
    missing = {op.name: op for op in shifts if not op.happens(coordinate, size)}

    def change(op: Op) -> Iterator[Op]:
        if op.name in missing:
            return
        kept = _without(op, [missing[name] for name in op.after if name in missing]) if missing and op.after else op
        if isinstance(kept, Shift):
            yield kept.at(coordinate, size) if kept.over == axis else kept
        else:
            yield at_coordinate(kept, axis, coordinate)

    return replace(program.map_ops(change), role=f"{program.role}, {axis} {coordinate}")


def _without(op: Op, missing: Sequence[Shift]) -> Op:
    """*op*, which neither waits for the *missing* shifts nor frees what they would have received."""
    if not missing:
        return op
    names, received = {shift.name for shift in missing}, sum(shift.allocates.get("buffers", 0.0) for shift in missing)
    after = tuple(name for name in op.after if name not in names)
    frees = {**op.frees, "buffers": op.frees.get("buffers", 0.0) - received} if received else op.frees
    return changed(op, after=after, frees=frees)
