"""Buffers hold what a stream sends and receives: vectors of fp32, as long as its longest communication needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from simulator.schedule import Collective, Copy, Op, Recv, Schedule, Send

if TYPE_CHECKING:
    import torch

ELEMENT = 4
"""Bytes of an element, fp32."""


@dataclass(frozen=True)
class Buffers:
    """What is sent comes from *source*, what is received goes to *sink*; beside a GPU's source stands *host* memory."""

    source: torch.Tensor
    sink: torch.Tensor
    host: torch.Tensor | None = None


def elements(nbytes: float, parts: int = 1) -> int:
    """Elements of each of so many equal *parts* of a vector of *nbytes*: rounded up, and one at least.

    >>> elements(10.0), elements(0.0), elements(100.0, 3)
    (3, 1, 9)
    """
    return max(1, ceil(nbytes / ELEMENT / parts))


def needed(op: Op, members: int) -> tuple[int, int]:
    """Elements of source and of sink that *op* needs in a group of so many *members*, whoever the root is."""
    if isinstance(op, Collective):
        return _vectors(op, elements(op.nbytes), elements(op.nbytes, members), members)
    if isinstance(op, Send | Recv | Copy):
        n = elements(op.nbytes)
        return 0 if isinstance(op, Recv) else n, n if isinstance(op, Recv) else 0
    return 0, 0


def _vectors(op: Collective, n: int, m: int, members: int) -> tuple[int, int]:
    """Elements of source and sink where the full vector has *n* and a part of it *m*."""
    if directly(op):
        return n, n if op.kind == "broadcast" else n * (members - 1)
    whole = m * members
    parted = {"gather": (m, whole), "scatter": (whole, m), "all_to_all": (whole, whole)}
    parted |= {"all_gather": parted["gather"], "reduce_scatter": parted["scatter"]}
    return parted.get(op.kind, (n, 0))


def directly(op: Collective) -> bool:
    """Whether *op* goes as messages, since the schedule wants it direct and no library has it so."""
    return op.algorithm == "direct" and op.kind in ("broadcast", "reduce")


def longest(schedule: Schedule, rank: int, ops: Iterable[Op]) -> tuple[int, int]:
    """Elements of source and sink that suffice for each of *ops* of *rank*, one after the other."""
    sizes = [needed(op, len(members(schedule, rank, op))) for op in ops]
    return max((source for source, _ in sizes), default=0), max((sink for _, sink in sizes), default=0)


def copied(ops: Iterable[Op]) -> int:
    """Elements of host memory that the copies among *ops* need."""
    return max((elements(op.nbytes) for op in ops if isinstance(op, Copy)), default=0)


def members(schedule: Schedule, rank: int, op: Op) -> Sequence[int]:
    """The ranks of the group of *rank* on the axis that *op* goes over; (rank,) if it goes over none."""
    if not isinstance(op, Collective | Send | Recv):
        return (rank,)
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    assert place is not None, f"rank {rank} is not on {op.over}: check() reports it"
    return axis.groups[place[0]]


def total_bytes(schedule: Schedule) -> float:
    """Bytes of the buffers of all ranks together."""
    return float(
        ELEMENT
        * sum(
            sum(longest(schedule, rank, ops)) + copied(ops)
            for rank in range(schedule.mesh.world_size)
            for ops in schedule.program(rank).streams().values()
        )
    )
