"""Kernels that differ with the coordinate of a rank on an axis: a causal mask gives some ranks more scores than others.

All ranks of a group run one program until all passes are done. Then each coordinate gets its own (`shift`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from simulator.kernel import Kernel
from simulator.schedule import Compute, Op

NO_KERNEL = Kernel(launches=0)
"""Stands where a rank has nothing to compute; it is left out."""


@dataclass(frozen=True, slots=True)
class KernelByCoordinate(Kernel):
    """One kernel of *each* coordinate on the axis *over*. Its own fields are the mean of these."""

    over: str = ""
    each: tuple[Kernel, ...] = ()


def by_coordinate(over: str, each: Sequence[Kernel]) -> Kernel:
    """The kernel of *each* coordinate on the axis *over* as one kernel; a plain kernel if all are equal.

    >>> by_coordinate("cp", [Kernel(nbytes=2.0), Kernel(nbytes=4.0)]).nbytes
    3.0
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
        _at(kernel, coordinate) if isinstance(kernel, KernelByCoordinate) and kernel.over == axis else kernel
        for kernel in op.kernels
    )
    return replace(op, kernels=tuple(kernel for kernel in own if kernel != NO_KERNEL))


def _at(kernel: KernelByCoordinate, coordinate: int) -> Kernel:
    own = kernel.each[coordinate]
    return own if own == NO_KERNEL else replace(own, operation=kernel.operation)
