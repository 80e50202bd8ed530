"""The choice among equal-cost paths through a fabric: of packets, of connections, or of destinations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator.hashing import mixed

Policy = Literal["auto", "adaptive", "ecmp", "static"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How switches choose among equal-cost paths.

    *policy*: ``adaptive`` spreads packets evenly over all paths. ``ecmp`` hashes each connection (RFC 2992). ``static``
    chooses by the destination: D-mod-K, the routing of InfiniBand's fat trees (Zahavi, "D-Mod-K routing providing
    non-blocking traffic for shift permutations on real life fat trees", 2010). ``auto`` leaves it to the fabric.

    *seed*: of the hash. *queue_pairs*: connections between two devices of a group, which share their bytes evenly.

    In a node. *pxn*: a GPU sends to a GPU of another rail through the GPU of its own node on that rail, over NVLink
    (NCCL's PXN, 2.12). *relays*: GPUs without a common NVLink reach each other through a GPU between them (NCCL's NVB).
    """

    policy: Policy = "auto"
    seed: int = 0
    queue_pairs: int = 1
    pxn: bool = False
    relays: bool = False

    @property
    def separate(self) -> bool:
        """Whether single cables count. Packets that are spread evenly load a bundle of cables as one."""
        return self.policy in ("ecmp", "static")

    def hashes(self, source: int, target: int, connection: int) -> Iterator[int]:
        """Yield a hash of 64 bits for each queue pair from port *source* to port *target*.

        *connection* distinguishes the groups to which the devices belong.
        """
        value = 0
        for part in (self.seed, source, target, connection):
            value = _mixed(value ^ part)
        yield from (_mixed(value ^ number) for number in range(self.queue_pairs))


def digits(number: int, *bases: int) -> list[int]:
    """Return the digits of *number* in mixed radix, least significant first.

    >>> digits(17, 4, 3)
    [1, 1]
    """
    found = []
    for base in bases:
        number, digit = divmod(number, base)
        found.append(digit)
    return found


def _mixed(value: int) -> int:
    return int(mixed(np.array([value & 0xFFFFFFFFFFFFFFFF], np.uint64))[0])
