"""What the ranks of a trace did in one step: work with durations and dependencies, however the trace was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clustersim.scenarios.real_traces.pieces_of_work import Shape


class TracedExchange(NamedTuple):
    """A communication: its *kind*, the bytes of the full vector (None: not known), and the *group*, its ranks in order.

    *name*: the process group. *source* and *target*: the ranks of a message, and *tag* what tells it from others.
    """

    kind: str
    nbytes: float | None
    group: tuple[int, ...]
    name: str = ""
    source: int = -1
    target: int = -1
    tag: int = 0

    @property
    def is_message(self) -> bool:
        """True for a send or a receive."""
        return self.kind in ("send", "recv")


class TracedWork(NamedTuple):
    """Work of *seconds* on *stream*, *delay* seconds after all of the work numbered *after* has ended.

    *part*: a phase of computation, ``copy``, ``host``, or the kind of communication. *kernel_class*, *shape* and
    *precision*: what scales it to another GPU. *launched*: the number of its launch in `RankWork.launches`; None if the
    trace does not tell.
    """

    name: str
    part: str
    stream: str
    seconds: float
    after: tuple[int, ...] = ()
    delay: float = 0.0
    exchange: TracedExchange | None = None
    kernel_class: str = ""
    shape: Shape | None = None
    precision: str = ""
    launched: int | None = None


class TracedLaunch(NamedTuple):
    """A launch by the host: *delay* seconds after the launch before and after the work that the host *awaited*."""

    delay: float
    awaited: int | None = None


@dataclass(frozen=True)
class RankWork:
    """The *works* of *rank* by their begin, its *launches*, and the *tail*: seconds from the last one to the end."""

    rank: int
    works: tuple[TracedWork, ...]
    launches: tuple[TracedLaunch, ...] = ()
    tail: float = 0.0


@dataclass(frozen=True)
class TracedStep:
    """One step of a run of *world_size* ranks, the work *by_rank*, which took *seconds* (0: not known).

    *device*: the name of the GPU in the trace, empty if unknown. *source*: where it was read. *on_gpu*: the trace
    has kernels of a GPU.
    """

    by_rank: Mapping[int, RankWork]
    world_size: int
    seconds: float
    device: str
    source: str
    on_gpu: bool = True

    @property
    def exchanges(self) -> Sequence[TracedExchange]:
        """The communications of all ranks."""
        return [work.exchange for own in self.by_rank.values() for work in own.works if work.exchange is not None]
