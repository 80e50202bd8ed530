"""The calibrated range of a fit: the smallest and largest shapes of products and other kernels that it has measured.

An op outside the range is priced by the same formulas, but they are not validated there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from simulator.kernel import Kernel
from simulator.schedule import Collective, Op, Recv, Schedule, Send

MESSAGE = "bytes of a message"

LATENCY_ALONE = 1024.0
"""Bytes up to which a message, such as a gradient's norm, costs only latency on any network."""

Extent = tuple[float, float]
"""The smallest and the largest value."""

CalibratedRange = Mapping[str, Extent]
"""The extent of each quantity of `quantities`."""


def distinct(schedule: Schedule) -> Iterator[Op]:
    """Yield the ops of GPU programs; ops that are repeated for each micro-batch once."""
    for program in schedule.programs:
        if program.on == "gpu":
            yield from program.distinct()


def quantities(op: Op) -> Iterator[tuple[str, float]]:
    """Yield the quantities of *op* that a fit may not cover: sides of products, of fused attention, bytes of others."""
    if isinstance(op, Collective | Send | Recv) and op.nbytes > LATENCY_ALONE:
        yield MESSAGE, op.nbytes
    for kernel in getattr(op, "kernels", ()):
        yield from _of_kernel(kernel)


def _of_kernel(kernel: Kernel) -> Iterator[tuple[str, float]]:
    if kernel.seconds is not None:
        return
    if kernel.shape is None:
        yield "bytes of a memory-bound kernel", kernel.nbytes
        return
    _, rows, columns, depth = kernel.shape
    if kernel.attention:
        yield "positions of fused attention", rows
        yield "head size of fused attention", depth
        return
    yield "longer side of a product", max(rows, columns)
    yield "shorter side of a product", min(rows, columns)
    yield "depth of a product", depth


def calibrated_range(ops: Iterable[Op]) -> dict[str, Extent]:
    """Return the extent of each quantity of *ops*."""
    found: dict[str, Extent] = {}
    for op in ops:
        for quantity, value in quantities(op):
            low, high = found.get(quantity, (inf, -inf))
            found[quantity] = min(low, value), max(high, value)
    return found


def joined(one: CalibratedRange, other: CalibratedRange) -> dict[str, Extent]:
    """Return the smallest range that contains both."""
    both = {quantity: (*one.get(quantity, ()), *other.get(quantity, ())) for quantity in {**one, **other}}
    return {quantity: (min(values), max(values)) for quantity, values in both.items()}


def outside(ops: Iterable[Op], covered: CalibratedRange) -> list[str]:
    """Return a line, with the ops, for each quantity of *ops* outside the range *covered*."""
    beyond: dict[str, dict[float, list[str]]] = {}
    for op in ops:
        for quantity, value in dict.fromkeys(quantities(op)):
            low, high = covered.get(quantity, (inf, -inf))
            if value and not low <= value <= high:
                beyond.setdefault(quantity, {}).setdefault(value, []).append(op.layer or op.name)
    return [_line(quantity, values, covered.get(quantity)) for quantity, values in beyond.items()]


def _line(quantity: str, values: Mapping[float, list[str]], covered: Extent | None) -> str:
    names = list(dict.fromkeys(name for own in values.values() for name in own))
    named = f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}"
    extent = f"{min(values):.4g}" + (f" to {max(values):.4g}" if len(values) > 1 else "")
    fitted = f"fitted rows have {covered[0]:.4g} to {covered[1]:.4g}" if covered else "no fitted row has any"
    return f"{quantity}: {extent} in {named}; {fitted}"
