"""The calibrated range of a fit: the smallest and largest shapes of products and other kernels that it has measured.

An op outside the range is priced by the same formulas, but they are not validated there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from simulator.kernel import Kernel
from simulator.schedule import Collective, Op, Recv, Schedule, Send
from simulator.units import show

MESSAGE = "bytes of a message"

MEMORY_BOUND = "bytes of a memory-bound kernel"

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
    yield from ((quantity, value) for quantity, value, _ in _with_kernels(op))


def _with_kernels(op: Op) -> Iterator[tuple[str, float, Kernel | None]]:
    """Yield (quantity, value, kernel) of *op*; None for the kernel of a message."""
    if isinstance(op, Collective | Send | Recv) and op.nbytes > LATENCY_ALONE:
        yield MESSAGE, op.nbytes, None
    for kernel in getattr(op, "kernels", ()):
        yield from ((quantity, value, kernel) for quantity, value in _of_kernel(kernel))


def _of_kernel(kernel: Kernel) -> Iterator[tuple[str, float]]:
    if kernel.seconds is not None:
        return
    if kernel.shape is None:
        yield MEMORY_BOUND, kernel.nbytes
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


@dataclass
class Beyond:
    """Ops outside the range *covered* of *quantity*: the *values*, the *names* of layers or ops, and the *kernels*."""

    quantity: str
    covered: Extent | None
    values: set[float] = field(default_factory=set)
    names: dict[str, None] = field(default_factory=dict)
    kernels: set[Kernel] = field(default_factory=set)

    def __str__(self) -> str:
        """What is outside, where, and what was measured, in units of the quantity."""
        several = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        fitted = f"measured: {self._extent(self.covered)}" if self.covered else "none was measured"
        what = f"{NOUNS.get(self.quantity, self.quantity)} {self._extent(self.values)}"
        return f"{what} ({next(iter(self.names))}{several}); {fitted}"

    def _extent(self, values: Iterable[float]) -> str:
        unit = self.quantity in (MESSAGE, MEMORY_BOUND)
        ends = [show(value, "size", 3) if unit else f"{value:,.0f}" for value in (min(values), max(values))]
        return " to ".join(dict.fromkeys(ends))


NOUNS = {
    MESSAGE: "messages of",
    MEMORY_BOUND: "memory-bound kernels of",
    "positions of fused attention": "fused attention over positions:",
    "head size of fused attention": "fused attention with a head size of",
    "longer side of a product": "products with a longer side of",
    "shorter side of a product": "products with a shorter side of",
    "depth of a product": "products with a depth of",
}
"""How a quantity is printed before its value."""


def outside(ops: Iterable[Op], covered: CalibratedRange) -> list[Beyond]:
    """Return what of *ops* is outside the range *covered*, by quantity."""
    found: dict[str, Beyond] = {}
    for op in ops:
        for quantity, value, kernel in dict.fromkeys(_with_kernels(op)):
            low, high = covered.get(quantity, (inf, -inf))
            if value and not low <= value <= high:
                one = found.setdefault(quantity, Beyond(quantity, covered.get(quantity)))
                one.values.add(value)
                one.names.setdefault(op.layer or op.name)
                if kernel is not None:
                    one.kernels.add(kernel)
    return list(found.values())
