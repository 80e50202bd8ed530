"""A place is the location of a rank on the network: its namespace, its interface, its address.

A testbed gives each rank a place of its own. Without a testbed all ranks are on the loopback interface.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
"""The address that never leaves the machine (RFC 1122, 3.2.1.3)."""


@dataclass(frozen=True, slots=True)
class Place:
    """*rank* runs in the network *namespace* (None: the launcher's own), with Gloo bound to *interface* (None: any).

    *address* is the rank's IPv4 address. The namespace is a name of ``ip netns``; only root can enter one. The store of
    a replay is at the address and in the namespace of rank 0.
    """

    rank: int
    namespace: str | None = None
    interface: str | None = None
    address: str = LOOPBACK


def on_loopback(ranks: int) -> tuple[Place, ...]:
    """Return a place on the loopback interface for each of *ranks* ranks."""
    return tuple(Place(rank, interface="lo") for rank in range(ranks))
