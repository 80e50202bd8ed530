"""An op is one operation of a rank: compute, wait, send, receive, take part in a collective, copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from math import isclose

from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Action

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
)

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")
"""Categories of memory. On the host, ``host.`` precedes the category."""

PLACES = ("gpu", "host", "nvme")
"""Where a `Copy` begins and ends."""

_NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """The fields of all ops.

    *action* and *layer* say where in the training step the op belongs, so that later passes find it. *after* names ops
    of the same program that must have ended before it begins. *releases*: at its end, the server of that name is free
    again, which an op before it holds (`Compute`). *allocates* (when the op begins) and *frees* (when it
    ends) map a category of memory to bytes.
    """

    name: str
    action: Action | None = None
    layer: str | None = None
    stream: str = "compute"
    after: tuple[str, ...] = ()
    releases: str | None = None
    allocates: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    frees: Mapping[str, float] = field(default_factory=lambda: _NOTHING)

    def __str__(self) -> str:
        after = f" after {', '.join(self.after)}" if self.after else ""
        return f"{self.name}: {self._what()} [{self.stream}]{after}"

    @property
    def at_server(self) -> str | None:
        """The server that executes it, or that it releases."""
        return self.releases

    def _what(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Op):
    """*kernels*, one after the other, on the rank's GPU or on its host.

    With *server*, the op is executed by the server of that name, which the whole schedule shares, not by the GPU. A
    server executes one op at a time, at full speed, and never interrupts it. Its next op is the waiting op with the
    lowest *priority*, then the first to arrive; simultaneous arrivals are ordered by rank and index in the program.
    The span begins when service begins. With *holds*, the server stays busy after the op, until an op that *releases*
    it has ended. So a server of one rank is a queue by priority for its messages: each holds it and is released when
    its bytes have been sent.
    """

    kernels: tuple[Kernel, ...]
    on: str = "gpu"
    server: str | None = None
    priority: int = 0
    holds: bool = False

    @property
    def at_server(self) -> str | None:
        """The server that executes it, or that it releases."""
        return self.server if self.server is not None else self.releases

    def _what(self) -> str:
        where = f" at server {self.server}" if self.server else " on the host" if self.on == "host" else ""
        return f"compute {len(self.kernels)} kernels{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Op):
    """A timer: the stream waits for *seconds*. No resource is used, and variation does not change it."""

    seconds: float

    def _what(self) -> str:
        return f"wait {self.seconds:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Op):
    """*nbytes* to the rank at coordinate *peer* of the axis *over*.

    A send and its receive begin together. The send ends when all bytes are sent, the receive when they are delivered:
    later by the latency of the links.

    A *buffered* send ends as soon as it begins: its transfer starts without waiting for the receive. The receive
    begins when it is ready and the send has begun, and ends when the bytes are delivered.
    """

    over: str
    peer: int
    nbytes: float
    buffered: bool = False

    def _what(self) -> str:
        return f"send {self.nbytes:g} B to {self.over} {self.peer}" + (", buffered" if self.buffered else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recv(Op):
    """*nbytes* from the rank at coordinate *peer* of the axis *over*.

    Where the next op of its stream is a receive too, that is posted when the bytes of this one have been sent, not
    when they are delivered: so messages follow each other without waiting for the latency of the links.
    """

    over: str
    peer: int
    nbytes: float

    def _what(self) -> str:
        return f"receive {self.nbytes:g} B from {self.over} {self.peer}"


@dataclass(frozen=True, slots=True)
class BySender:
    """Bytes of an all-to-all that depend on the sender: the rank at coordinate i sends ``nbytes[i]`` to every rank.

    So go the answers to an all-to-all with unequal bytes for its receivers.
    """

    nbytes: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.nbytes)

    def __iter__(self) -> Iterator[float]:
        return iter(self.nbytes)

    def times(self, factor: float) -> BySender:
        """The same with *factor* times the bytes."""
        return BySender(tuple(nbytes * factor for nbytes in self.nbytes))


PerPeer = tuple[float, ...] | BySender
"""Bytes for each receiver, the same from every sender; or by sender."""


def scaled_bytes(per_peer: PerPeer | None, factor: float) -> PerPeer | None:
    """*per_peer* with *factor* times the bytes."""
    if per_peer is None or isinstance(per_peer, BySender):
        return per_peer and per_peer.times(factor)
    return tuple(nbytes * factor for nbytes in per_peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Op):
    """*kind* (of `COLLECTIVES`) over the rank's group on the axis *over*.

    *nbytes* is the size of the full vector, as in nccl-tests: what every rank holds after an all-gather or before a
    reduce-scatter, what the root holds for a gather or scatter, what each rank sends in all for an all-to-all. *root*
    is a coordinate on the axis. *algorithm*: ``auto`` lets the network choose; a parameter server, for example, is
    always ``direct``. *per_peer*, for an all-to-all only: the bytes that every rank sends to each coordinate, itself
    included, or that each coordinate sends (`BySender`); their sum is *nbytes*, which is what a rank receives in the
    second case. Default: equal parts.
    """

    kind: str
    over: str
    nbytes: float
    root: int = 0
    algorithm: str = "auto"
    per_peer: PerPeer | None = None

    def __post_init__(self) -> None:
        if self.per_peer is None:
            return
        if self.kind != "all_to_all":
            raise ScheduleError(f"{self.name}: bytes for each peer belong to an all_to_all, not to {self.kind}")
        if not isclose(sum(self.per_peer), self.nbytes):
            raise ScheduleError(f"{self.name}: {sum(self.per_peer):g} B for all peers, but nbytes is {self.nbytes:g}")

    def _what(self) -> str:
        return f"{self.kind} {self.nbytes:g} B over {self.over}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Op):
    """*nbytes* *to* the ``gpu``, the ``host`` or ``nvme``, from the place *source*.

    By default a copy to the host comes from the GPU, and any other from the host. From the host to itself: cores of the
    host read and write *nbytes* of its memory, which bounds them and which other copies share.
    """

    nbytes: float
    to: str
    source: str = ""

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", "gpu" if self.to == "host" else "host")
        if (self.to == self.source and not self.on_cores) or not {self.to, self.source} <= set(PLACES):
            raise ScheduleError(f"{self.name}: no copy from {self.source} to {self.to}; places are {', '.join(PLACES)}")

    @property
    def on_host(self) -> bool:
        """True if it neither begins nor ends on the GPU."""
        return "gpu" not in (self.source, self.to)

    @property
    def on_cores(self) -> bool:
        """True for work of the cores of the host on its memory."""
        return self.source == self.to == "host"

    def _what(self) -> str:
        if self.on_cores:
            return f"read and write {self.nbytes:g} B on the host"
        return f"copy {self.nbytes:g} B from the {self.source} to the {self.to}"
