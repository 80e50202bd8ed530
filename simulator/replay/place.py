"""A place is where a rank of a replay lives on the network: its namespace, its interface, its address.

A testbed gives each rank a place of its own; without one all ranks stand on the loopback interface.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
"""The address that never leaves the machine (RFC 1122, 3.2.1.3)."""


@dataclass(frozen=True, slots=True)
class Place:
    """*rank* runs in the network *namespace* (None: the launcher's own), Gloo bound to *interface* (None: any).

    *address* is the rank's IPv4 address, by which the others reach it. The namespace is a name of ``ip netns``; only
    root can enter one. The store of a replay stands at the address of rank 0, in rank 0's namespace.
    """

    rank: int
    namespace: str | None = None
    interface: str | None = None
    address: str = LOOPBACK


def on_loopback(ranks: int) -> tuple[Place, ...]:
    """A place on the loopback interface for each of so many *ranks*."""
    return tuple(Place(rank, interface="lo") for rank in range(ranks))
