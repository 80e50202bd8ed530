"""Communication on torch.distributed: each op of a schedule as the equivalent library call.

The library chooses the algorithm. Gloo in torch 2.13 runs a reduce-scatter as a whole all-reduce (counted bytes show
it), an all-reduce as a ring, a broadcast as a binomial tree, a reduce as reduce-scatter and gather. A collective for
which the schedule requests *direct* is executed as messages if the library has another algorithm. A direct reduce
leaves the vectors side by side at the root, because the schedule has its own computation that adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch
import torch.distributed as dist

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ReplayError
from clustersim.simulator.replay.rank_process import Member
from clustersim.simulator.replay.rendezvous import (
    Channel,
    CollectiveRendezvous,
    MessageBuffers,
    MessageRendezvous,
    Rendezvous,
    channels,
    elements,
    members,
    pairs,
    sent_directly,
    tags,
)
from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.schedule import Schedule

_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Their names from torch 2.13 on; before that, the other ones."""


@dataclass(frozen=True)
class LibraryCall:
    """One collective in *group* with ranks *ranks*. This rank is at position *coordinate*.

    *n*: elements of the full vector. *m*: elements of one of its parts.
    """

    group: Any
    ranks: tuple[int, ...]
    coordinate: int
    root: int
    n: int
    m: int
    buffers: MessageBuffers

    @property
    def whole(self) -> int:
        """Elements of all parts together."""
        return self.m * len(self.ranks)

    @property
    def at_root(self) -> bool:
        """Whether this rank is the root."""
        return self.coordinate == self.root

    def parts(self, vector: torch.Tensor) -> list[torch.Tensor] | None:
        """Return the parts of *vector* at the root; None elsewhere."""
        return list(vector[: self.whole].chunk(len(self.ranks))) if self.at_root else None


def _gather(call: LibraryCall) -> None:
    sink = call.parts(call.buffers.sink)
    dist.gather(call.buffers.source[: call.m], sink, call.ranks[call.root], group=call.group)


def _scatter(call: LibraryCall) -> None:
    source = call.parts(call.buffers.source)
    dist.scatter(call.buffers.sink[: call.m], source, call.ranks[call.root], group=call.group)


def _all_to_all(call: LibraryCall) -> None:
    dist.all_to_all_single(call.buffers.sink[: call.whole], call.buffers.source[: call.whole], group=call.group)


KINDS: dict[str, Callable[[LibraryCall], Any]] = {
    "all_reduce": lambda c: dist.all_reduce(c.buffers.source[: c.n], group=c.group),
    "all_gather": lambda c: _all_gather(c.buffers.sink[: c.whole], c.buffers.source[: c.m], group=c.group),
    "reduce_scatter": lambda c: _reduce_scatter(c.buffers.sink[: c.m], c.buffers.source[: c.whole], group=c.group),
    "broadcast": lambda c: dist.broadcast(c.buffers.source[: c.n], c.ranks[c.root], group=c.group),
    "reduce": lambda c: dist.reduce(c.buffers.source[: c.n], c.ranks[c.root], group=c.group),
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}


def _directly(call: LibraryCall, kind: str) -> None:
    """Execute a broadcast or reduce as concurrent messages between the root and each other rank."""
    outward = kind == "broadcast"
    others = [rank for rank in call.ranks if rank != call.ranks[call.root]]
    peers = others if call.at_root else [call.ranks[call.root]]
    sends = outward == call.at_root
    start = dist.isend if sends else dist.irecv
    buffer = call.buffers.source if sends else call.buffers.sink
    apart = 0 if sends or not call.at_root else call.n
    messages = [
        dist.P2POp(start, buffer[i * apart : i * apart + call.n], peer, group=call.group)
        for i, peer in enumerate(peers)
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()


def _copy(op: Copy, buffers: MessageBuffers) -> None:
    n = elements(op.nbytes)
    assert buffers.host is not None
    gpu, host = buffers.source[:n], buffers.host[:n]
    if "nvme" in (op.source, op.to):
        raise ReplayError(f"{op.name}: copies from and to NVMe drives are not replayed; offload to the host")
    if op.on_cores:
        # an addition in place reads and writes
        host[: n // 2].add_(1.0)
    elif op.to == "host":
        host.copy_(gpu)
    else:
        gpu.copy_(host)


@dataclass
class Communication:
    """The communication of the rank of *member* in *schedule*, with its process groups."""

    schedule: Schedule
    member: Member
    _groups: dict[Channel | tuple[int, int], Any] = field(default_factory=dict)
    _tags: dict[MessageRendezvous, int] = field(default_factory=dict)

    def open(self) -> None:
        """Open all process groups. Every rank opens all of them, in the same order."""
        wanted: dict[Channel | tuple[int, int], tuple[int, ...]] = dict(channels(self.schedule).items())
        # a group for each direction of a pair: NCCL has no tags to distinguish them, and under Gloo a receiver's
        # request would queue behind the bytes of the other direction on one connection
        wanted |= {pair: pair for pair in pairs(self.schedule)}
        for name, ranks in wanted.items():
            self._groups[name] = dist.new_group(list(ranks), backend=self._backend(ranks))
            if self.member.rank in ranks and self._backend(ranks) == "nccl":
                self._connect(name, ranks)
        self._tags = dict(tags(self.schedule, self.member.rank))

    def _connect(self, name: Channel | tuple[int, int], ranks: tuple[int, ...]) -> None:
        """Let NCCL open its communicator now, in the order of the groups. Later, threads would open several at once."""
        group, vector = self._groups[name], torch.zeros(1, device=self.member.device)
        if isinstance(name, Channel):
            dist.all_reduce(vector, group=group)
        elif self.member.rank == ranks[0]:
            dist.send(vector, ranks[1], group=group)
        else:
            dist.recv(vector, ranks[0], group=group)
        torch.cuda.synchronize()

    def _backend(self, ranks: tuple[int, ...]) -> str:
        """The backend of a group. With a host rank in the group, tensors stay on hosts."""
        on_gpus = all(self.schedule.program(rank).on == "gpu" for rank in ranks)
        return self.member.backend if on_gpus else "gloo"

    def device(self, ops: Sequence[Op]) -> str:
        """Return the device of the tensors of one stream's *ops*."""
        ranks = {rank for op in ops for rank in members(self.schedule, self.member.rank, op)}
        return "cpu" if self._backend(tuple(ranks)) == "gloo" else self.member.device

    def execute(self, op: Op, rendezvous: Rendezvous | None, buffers: MessageBuffers) -> None:
        """Execute *op* from begin to end."""
        match op, rendezvous:
            case Collective(), CollectiveRendezvous():
                self._gather(op, rendezvous, buffers)
            case Send(), MessageRendezvous():
                dist.send(buffers.source[: elements(op.nbytes)], rendezvous.receiver, **self._line(rendezvous))
            case Recv(), MessageRendezvous():
                dist.recv(buffers.sink[: elements(op.nbytes)], rendezvous.sender, **self._line(rendezvous))
            case Copy(), _:
                _copy(op, buffers)

    def _gather(self, op: Collective, rendezvous: CollectiveRendezvous, buffers: MessageBuffers) -> None:
        ranks = tuple(members(self.schedule, self.member.rank, op))
        n, m = elements(op.nbytes), elements(op.nbytes, len(ranks))
        group = self._groups[rendezvous.channel]
        call = LibraryCall(group, ranks, ranks.index(self.member.rank), op.root, n, m, buffers)
        if sent_directly(op):
            _directly(call, op.kind)
        else:
            KINDS[op.kind](call)

    def _line(self, message: MessageRendezvous) -> dict[str, Any]:
        """The group of a message's pair and direction, and under Gloo the message's tag."""
        line = {"group": self._groups[message.sender, message.receiver]}
        return line if self.member.backend == "nccl" else {**line, "tag": self._tags[message]}
