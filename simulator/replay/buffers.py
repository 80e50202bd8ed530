"""Buffers for the messages of a stream: vectors of fp32, as long as its largest communication requires. Those of all
ranks must fit into the memory of one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
    import torch

ELEMENT = 4
"""Bytes of an element, fp32."""

COPIES = 2
"""Gloo reduces in memory of its own, as large as the vector."""

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class MessageBuffers:
    """Data are sent from *source* and received into *sink*.

    *host* is memory of the host for copies from and to a GPU.
    """

    source: torch.Tensor
    sink: torch.Tensor
    host: torch.Tensor | None = None


def elements(nbytes: float, parts: int = 1) -> int:
    """Return the elements of each of *parts* equal parts of a vector of *nbytes*: rounded up, at least one.

    >>> elements(10.0), elements(0.0), elements(100.0, 3)
    (3, 1, 9)
    """
    return max(1, ceil(nbytes / ELEMENT / parts))


def required_elements(op: Op, members: int) -> tuple[int, int]:
    """Return the elements of source and of sink that *op* requires in a group of *members* ranks, for any root."""
    if isinstance(op, Collective):
        return _vectors(op, elements(op.nbytes), elements(op.nbytes, members), members)
    if isinstance(op, Send | Recv | Copy):
        n = elements(op.nbytes)
        return 0 if isinstance(op, Recv) else n, n if isinstance(op, Recv) else 0
    return 0, 0


def _vectors(op: Collective, n: int, m: int, members: int) -> tuple[int, int]:
    """The elements of source and sink if the full vector has *n* and a part of it *m*."""
    if sent_directly(op):
        return n, n if op.kind == "broadcast" else n * (members - 1)
    whole = m * members
    parted = {"gather": (m, whole), "scatter": (whole, m), "all_to_all": (whole, whole)}
    parted |= {"all_gather": parted["gather"], "reduce_scatter": parted["scatter"]}
    return parted.get(op.kind, (n, 0))


def sent_directly(op: Collective) -> bool:
    """Whether *op* is executed as messages, because the schedule requests a direct algorithm that no library has."""
    return op.algorithm == "direct" and op.kind in ("broadcast", "reduce")


def longest_buffers(schedule: Schedule, rank: int, ops: Iterable[Op]) -> tuple[int, int]:
    """Return the elements of source and sink that suffice for each of *ops* of *rank* in turn."""
    sizes = [required_elements(op, len(members(schedule, rank, op))) for op in ops]
    return max((source for source, _ in sizes), default=0), max((sink for _, sink in sizes), default=0)


def host_elements(ops: Iterable[Op]) -> int:
    """Return the elements of host memory that the copies among *ops* require."""
    return max((elements(op.nbytes) for op in ops if isinstance(op, Copy)), default=0)


def members(schedule: Schedule, rank: int, op: Op) -> Sequence[int]:
    """Return the group of *rank* on the axis of *op*; (rank,) for an op without an axis."""
    if not isinstance(op, Collective | Send | Recv):
        return (rank,)
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    assert place is not None, f"rank {rank} is not on {op.over}: check() reports it"
    return axis.groups[place[0]]


def total_bytes(schedule: Schedule) -> float:
    """Return the bytes of the buffers of all ranks together."""
    return float(
        ELEMENT
        * sum(
            sum(longest_buffers(schedule, rank, ops)) + host_elements(ops)
            for rank in range(schedule.mesh.world_size)
            for ops in schedule.program(rank).streams().values()
        )
    )


def available_bytes() -> float:
    """Return the bytes available without swapping (proc(5), MemAvailable); infinite if unknown."""
    if not MEMINFO.exists():
        return float("inf")
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return 1024.0 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else float("inf")


def fitting_scale(schedule: Schedule, available: float) -> float:
    """Return the factor on all communicated bytes with which a replay takes at most half of *available* bytes.

    It is 1, or a half of it, a quarter ...
    """
    factor, needed = 1.0, COPIES * total_bytes(schedule)
    while factor * needed > available / 2:
        factor /= 2
    return factor
