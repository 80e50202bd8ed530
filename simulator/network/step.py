"""An algorithm is a short list of steps: who sends to whom at once, how much, how many times.

A function of an algorithm's file takes (group, nbytes) - the rooted ones also root, a position - and returns its steps;
*nbytes* is the full vector, as nccl-tests counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

Transfer = tuple[int, int]
"""(sender, receiver), positions in the group."""

Blocks = Callable[[int, int], Sequence[int]]
"""(repetition, index of the transfer) -> which blocks of the vector it carries; for the proof, not for the cost."""


@dataclass(frozen=True)
class Group:
    """The ranks of one collective, by position.

    *nodes*: the positions in each server, in order. *rings*: the orders in which rings run through all positions, one
    for each channel; the transport finds them on the cluster.
    """

    size: int
    nodes: tuple[tuple[int, ...], ...] = ()
    rings: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def channels(self) -> tuple[tuple[int, ...], ...]:
        """The rings, or the one in order of position where none are given."""
        return self.rings or (tuple(range(self.size)),)

    @cached_property
    def servers(self) -> tuple[tuple[int, ...], ...]:
        """The positions by server, or all in one where none are given."""
        return self.nodes or (tuple(range(self.size)),)


@dataclass(frozen=True)
class Step:
    """*transfers* at once, *nbytes* each, *repeat* times over.

    *pipelined*: the transfers stand in order of dependency and a chunk passes them one after the other while others
    follow it, so that latency is paid once along the longest chain; else every repetition is a round of its own.
    *lanes*: the transfers fall into so many runs of equal length that know nothing of each other (rings, trees).
    *coupled*: the transfers advance together, as in a ring; else each takes what rate it gets (a root that serves
    unequal links). *reduces*: what arrives is added to what is there; of all transfers, or by transfer. *in_switch*:
    switches copy what one position sends to many, and add what many send to one, so that a link carries it once; a
    position's own part passes the switch too. *blocks* says which parts of the vector, of
    *parts* equal ones, go where (of an all-to-all: of all ranks' vectors, part i p + j from i for j). *continues*: the
    transfers continue messages of the step before, so that no latency is paid. *forwards*: from the second repetition
    on a position passes on what it got in the one before, and not its sum; for the proof.
    """

    transfers: tuple[Transfer, ...]
    nbytes: float
    repeat: int = 1
    pipelined: bool = False
    lanes: int = 1
    coupled: bool = True
    reduces: bool | tuple[bool, ...] = False
    parts: int = 0
    blocks: Blocks | None = None
    in_switch: bool = False
    continues: bool = False
    forwards: bool = False

    @cached_property
    def rounds(self) -> int:
        """How many latencies it pays."""
        return round(self.latency([1.0] * len(self.transfers)))

    def adds(self, transfer: int) -> bool:
        """Whether what the *transfer* of that number brings is added to what is there."""
        return self.reduces if isinstance(self.reduces, bool) else self.reduces[transfer]

    def latency(self, alphas: Sequence[float]) -> float:
        """Seconds of latency, where *alphas* are those of one message, by transfer.

        A pipelined step pays its longest chain. A step of one round waits for its slowest transfer. In a repeated
        permutation every chunk passes every hop in turn, so each round costs the mean; the slowest lane counts.
        A step that continues the messages of the step before pays nothing.
        """
        if self.continues:
            return 0.0
        if not self.pipelined and self.repeat == 1:
            return max(alphas, default=0.0)
        length = max(1, len(self.transfers) // self.lanes)
        runs = range(0, len(self.transfers), length)
        if self.pipelined:
            return max((self._chain(alphas, run, run + length) for run in runs), default=0.0)
        return self.repeat * max((sum(alphas[run : run + length]) / length for run in runs), default=0.0)

    def fill(self, seconds: Sequence[float]) -> float:
        """Seconds until all hops of a pipelined step are busy, where *seconds* are those of one chunk, by transfer.

        The first chunk passes the hops of the longest chain one after the other; its time on the slowest hop is part of
        the time that all chunks take there.
        """
        return self.latency(seconds) - max(seconds, default=0.0)

    def exposed(self, alphas: Sequence[float], betas: Sequence[float]) -> float:
        """Seconds of latency of a repeated permutation that do not hide behind its slowest transfer.

        *betas* are seconds for 1 byte, by transfer. A chunk passes every hop in turn, and a hop every chunk: a round
        takes as long as the slowest hop is busy, or the mean of latency and bytes over the hops of a lane, whichever is
        more (the maximum cycle mean: Baccelli et al., "Synchronization and Linearity", 1992, theorem 3.28).
        """
        hops = [alpha + self.nbytes * beta for alpha, beta in zip(alphas, betas, strict=True)]
        length = max(1, len(hops) // self.lanes)
        turn = max((sum(hops[run : run + length]) / length for run in range(0, len(hops), length)), default=0.0)
        return self.repeat * max(0.0, turn - self.nbytes * max(betas, default=0.0))

    def _chain(self, alphas: Sequence[float], begin: int, end: int) -> float:
        arrival: dict[int, float] = {}
        for (sender, receiver), alpha in zip(self.transfers[begin:end], alphas[begin:end], strict=True):
            arrival[receiver] = max(arrival.get(receiver, 0.0), arrival.get(sender, 0.0) + alpha)
        return max(arrival.values(), default=0.0)
