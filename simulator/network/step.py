"""An algorithm is a short list of steps. A step says which ranks send to which, how much, and how often.

A function in an algorithm's file takes (group, nbytes), and root as well if the collective has one; a root is a
position in the group. It returns the steps. *nbytes* is the full vector, as nccl-tests counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot, inf
from typing import TypeVar

import numpy as np

from clustersim.simulator.hardware.array_rows import Rows
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.hardware.links import Floats
from clustersim.simulator.reading.dataclass import dataclass

Number = TypeVar("Number", int, Indices)

Transfer = tuple[int, int]
"""(sender, receiver), positions in the group."""

Blocks = Callable[[int, int], Sequence[int]]
"""(repetition, index of the transfer) -> the blocks of the vector that it carries. For proofs, not for costs."""


@dataclass(frozen=True)
class Group:
    """The ranks of one collective, by position.

    *nodes*: the positions in each server, in order. *rings*: orders in which rings visit all positions, one ring for
    each channel; the transport finds them on the cluster. *dims*: the sides of the torus that the positions of each
    server make, in row-major order.
    """

    size: int
    nodes: tuple[tuple[int, ...], ...] = ()
    rings: tuple[tuple[int, ...], ...] = ()
    dims: tuple[int, ...] = ()

    @cached_property
    def channels(self) -> tuple[tuple[int, ...], ...]:
        """The rings. Without rings: one ring in order of position."""
        return self.rings or (tuple(range(self.size)),)

    @cached_property
    def servers(self) -> tuple[tuple[int, ...], ...]:
        """The positions by server. Without servers: all positions in one."""
        return self.nodes or (tuple(range(self.size)),)

    @cached_property
    def around(self) -> Rows[Transfer]:
        """The transfers from each position to the next one of each of the `channels`."""
        return around(self.channels)


@dataclass(frozen=True)
class Step:
    """Concurrent *transfers* of *nbytes* each, repeated *repeat* times.

    *pipelined*: the transfers are in order of dependency, and each chunk passes them in turn while other chunks follow.
    So latency is paid once along the longest chain. Without *pipelined* every repetition is a round of its own.

    *lanes*: the number of equal runs of transfers that are independent of each other (rings, trees).

    *coupled*: the transfers advance at one rate, as in a ring. Without it each transfer has its own rate, for example
    from a root over unequal links.

    *reduces*: the receiver adds what arrives to its own data; one value, or one for each transfer.

    *in_switch*: switches copy what one position sends to many and add what many positions send to one, so a link
    carries it once. Where parts are reduced at all positions, a position's own part passes the switch too. One value,
    or one for each transfer.

    *blocks*: which blocks of the vector, out of *parts* equal ones, each transfer carries. For an all-to-all the
    vectors of all ranks count: part i p + j goes from i to j.

    *continues*: the transfers continue messages of the step before, so they pay no latency.

    *forwards*: from the second repetition on a position sends what it received in the repetition before, not its sum.
    Only the proof of correctness needs it.
    """

    transfers: tuple[Transfer, ...] | Rows[Transfer]
    nbytes: float
    repeat: int = 1
    pipelined: bool = False
    lanes: int = 1
    coupled: bool = True
    reduces: bool | tuple[bool, ...] = False
    parts: int = 0
    blocks: Blocks | None = None
    in_switch: bool | tuple[bool, ...] = False
    continues: bool = False
    forwards: bool = False

    @cached_property
    def ends(self) -> Indices:
        """The transfers as an array of shape ``(transfers, 2)``."""
        if isinstance(self.transfers, Rows):
            return self.transfers.array
        return np.array(self.transfers, np.int64).reshape(-1, 2)

    @cached_property
    def rounds(self) -> int:
        """The number of latencies that the step pays."""
        return round(self.latency(np.ones(len(self.transfers))))

    def adds(self, transfer: int) -> bool:
        """Whether the receiver of transfer number *transfer* adds what arrives to its own data."""
        return self.reduces if isinstance(self.reduces, bool) else self.reduces[transfer]

    def switched(self, transfer: int) -> bool:
        """Whether switches copy or add what transfer number *transfer* carries."""
        return self.in_switch if isinstance(self.in_switch, bool) else self.in_switch[transfer]

    def lane(self, transfer: Number) -> Number:
        """Return the number of the lane of transfer number *transfer*, or of each of several."""
        return transfer // max(1, len(self.transfers) // self.lanes)

    def passes(self) -> list[Step]:
        """Return the step as one that adds and one that passes on, each with the vector to itself; itself if only one
        of them has transfers.

        >>> [step.transfers for step in Step(((1, 0), (0, 1)), 1.0, 8, True, reduces=(True, False)).passes()]
        [((1, 0),), ((0, 1),)]
        """
        return [self] if isinstance(self.reduces, bool) or len(set(self.reduces)) < 2 else self._passes

    @cached_property
    def _passes(self) -> list[Step]:
        """The transfers that add, and those that pass on."""
        adds = np.array(self.reduces)
        return [
            replace(self, transfers=Rows(self.ends[adds]), reduces=True),
            replace(self, transfers=Rows(self.ends[~adds]), reduces=False),
        ]

    def latency(self, alphas: Floats) -> float:
        """Return the seconds of latency. *alphas*: the latency of one message, by transfer.

        A pipelined step pays its longest chain. A step of one round waits for its slowest transfer. In a repeated
        permutation every chunk passes every hop in turn, so each round costs the mean over the hops; the slowest lane
        counts. A step that continues the messages of the step before pays nothing.
        """
        if self.continues:
            return 0.0
        if not self.pipelined and self.repeat == 1:
            return float(alphas.max(initial=0.0))
        if self.pipelined:
            length, each = self._length, alphas.tolist()
            runs = range(0, len(each), length)
            return max((self._chain(each, run, run + length) for run in runs), default=0.0)
        return self.repeat * self._slowest_lane(alphas)

    @property
    def _length(self) -> int:
        """The number of transfers of a lane."""
        return max(1, len(self.transfers) // self.lanes)

    def _slowest_lane(self, seconds: Floats) -> float:
        """The mean of *seconds*, by transfer, over the transfers of the slowest lane."""
        lanes = np.bincount(np.arange(len(seconds)) // self._length, seconds)
        return float(lanes.max(initial=0.0)) / self._length

    def fill(self, seconds: Floats) -> float:
        """Return the seconds until all hops of a pipelined step are busy. *seconds*: of one chunk, by transfer.

        The first chunk passes the hops of the longest chain one after the other. Its time on the slowest hop is part of
        the time that all chunks take there.
        """
        return self.latency(seconds) - float(seconds.max(initial=0.0))

    def exposed(
        self,
        alphas: Floats,
        betas: Floats,
        chunk: float = inf,
        slices: int = 1,
        ready: Floats | None = None,
        line: float = 0.0,
    ) -> float:
        """Return the seconds of latency of a repeated permutation that its slowest transfer does not overlap.

        *betas*: seconds for 1 byte, by transfer. Every chunk passes every hop. So a round takes the longer of two
        times: the busy time of the slowest hop, and the mean of latency plus transfer time over the hops of a lane (the
        maximum cycle mean: Baccelli et al., "Synchronization and Linearity", 1992, theorem 3.28).

        Transfers of more than *chunk* bytes are passed around chunk after chunk, each in *slices* parts that are passed
        on when they come. *ready*: the latency of such a part, if it is not that of a message. *line*: bytes of the
        parts that are passed on one by one, however small the transfers. Then a round would take the longer of hop and
        bytes; as ranks and rounds vary, it takes the root of the sum of their squares.
        """
        slowest = float(betas.max(initial=0.0))
        if line:
            turn, busy = self._turn(alphas, betas, min(line, self.nbytes)), self.nbytes * slowest
            return self.repeat * (hypot(turn, busy) - busy)
        whole = self.repeat * max(0.0, self._turn(alphas, betas, self.nbytes) - self.nbytes * slowest)
        if self.nbytes <= chunk:
            return whole
        turn = self._turn(alphas if ready is None else ready, betas, chunk / slices)
        return max(whole, self.repeat * self.nbytes / chunk * max(0.0, turn - chunk * slowest))

    def _turn(self, alphas: Floats, betas: Floats, nbytes: float) -> float:
        """The mean seconds in which *nbytes* pass a hop of the slowest lane."""
        return self._slowest_lane(alphas + nbytes * betas)

    @cached_property
    def _columns(self) -> tuple[list[int], list[int], int]:
        """The senders, the receivers, and the number of positions up to the last one of them."""
        senders, receivers = self.ends.T.tolist()
        return senders, receivers, int(self.ends.max(initial=-1)) + 1

    def _chain(self, alphas: Sequence[float], begin: int, end: int) -> float:
        senders, receivers, positions = self._columns
        arrival = [0.0] * positions
        for sender, receiver, alpha in zip(senders[begin:end], receivers[begin:end], alphas[begin:end], strict=True):
            here = arrival[sender] + alpha
            arrival[receiver] = max(arrival[receiver], here)
        return max(arrival, default=0.0)


def around(rings: Sequence[Sequence[int]]) -> Rows[Transfer]:
    """Return the transfers from each position of each of *rings*, equally long, to the next one."""
    senders = np.array(rings, np.int64).reshape(len(rings), -1)
    return Rows(np.stack([senders, np.roll(senders, -1, axis=1)], axis=-1).reshape(-1, 2))
