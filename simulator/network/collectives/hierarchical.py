"""A hierarchy of rings: inside each server, then across servers among ranks of equal place, then inside again.

Each server sends its share of the vector once, over all its NICs. NCCL's 2D ring and BlueConnect (Cho et al.,
"BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", 2019) are built so. Servers
of unequal size instead reduce to a leader, the leaders form a ring, and each leader broadcasts the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.simulator.network.collectives import ring
from clustersim.simulator.network.step import Group, Step


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position."""
    if _equal(group):
        return reduce_scatter(group, nbytes) + all_gather(group, nbytes)
    leaders = _leaders(group)
    up, down = _inside(group, leaders, nbytes, reduces=True), _inside(group, leaders, nbytes, reduces=False)
    return [*up, *_around(leaders, nbytes, reduces=True), *_around(leaders, nbytes, reduces=False), *down]


def reduce_scatter(group: Group, nbytes: float) -> list[Step]:
    """Position i ends with the sum of block i. Over unequal servers: one ring that visits server after server."""
    if not _equal(group):
        return ring.reduce_scatter(_by_server(group), nbytes)
    return _inner(group, nbytes, reduces=True) + across(group, nbytes, reduces=True)


def all_gather(group: Group, nbytes: float) -> list[Step]:
    """Every position ends with every block. Over unequal servers: one ring that visits server after server."""
    if not _equal(group):
        return ring.all_gather(_by_server(group), nbytes)
    return across(group, nbytes, reduces=False) + _inner(group, nbytes, reduces=False)


def broadcast(group: Group, nbytes: float, root: int) -> list[Step]:
    """The root's vector along a chain of leaders, then along chains inside the servers."""
    leaders = _leaders(group, root)
    return ring.chain([[leaders]], nbytes, reduces=False) + _inside(group, leaders, nbytes, reduces=False)


def reduce(group: Group, nbytes: float, root: int) -> list[Step]:
    """The sum along chains inside the servers, then along a chain of leaders that ends at the root."""
    leaders = _leaders(group, root)
    return _inside(group, leaders, nbytes, reduces=True) + ring.chain([[leaders[::-1]]], nbytes, reduces=True)


def _equal(group: Group) -> bool:
    return len({len(server) for server in group.servers}) == 1


def _inner(group: Group, nbytes: float, *, reduces: bool) -> list[Step]:
    """Rings inside the servers, one for each channel. Place l of a server owns the blocks of all places l."""
    channels, servers = group.channels, group.servers
    rings = [order for channel in channels for order in _inside_orders(channel, servers)]
    place = {position: number for server in servers for number, position in enumerate(server)}

    def owned(number: int, position: int) -> Sequence[int]:
        channel = number // len(servers)
        return [server[place[position]] * len(channels) + channel for server in servers]

    share = nbytes / len(servers[0]) / len(channels)
    return ring.rotation(rings, share, group.size * len(channels), owned, reduces=reduces)


def across(group: Group, nbytes: float, *, reduces: bool) -> list[Step]:
    """Rings across the servers, among the positions of equal place."""
    rings = list(zip(*group.servers, strict=True))
    return ring.rotation(rings, nbytes / group.size, group.size, lambda _, position: (position,), reduces=reduces)


def _leaders(group: Group, root: int | None = None) -> tuple[int, ...]:
    """One position for each server. The root leads its server, and its server is first."""
    servers = sorted(group.servers, key=lambda server: root not in server)
    return tuple(root if root is not None and root in server else server[0] for server in servers)


def _inside(group: Group, leaders: Sequence[int], nbytes: float, *, reduces: bool) -> list[Step]:
    """Chains from the leaders through their servers, or (*reduces*) back to the leaders."""
    leading = set(leaders)
    lanes = [
        [
            ring.rotated(order, leader)
            for order in _inside_orders(channel, group.servers)
            for leader in order
            if leader in leading
        ]
        for channel in group.channels
    ]
    if reduces:
        lanes = [[chain[::-1] for chain in chains] for chains in lanes]
    return ring.chain(lanes, nbytes, reduces=reduces)


def _inside_orders(channel: Sequence[int], servers: Sequence[Sequence[int]]) -> list[list[int]]:
    """The order in which *channel* visits the positions of each server."""
    server_of = {position: number for number, server in enumerate(servers) for position in server}
    orders: list[list[int]] = [[] for _ in servers]
    for position in channel:
        orders[server_of[position]].append(position)
    return orders


def _around(leaders: Sequence[int], nbytes: float, *, reduces: bool) -> list[Step]:
    place = {leader: number for number, leader in enumerate(leaders)}
    share, parts = nbytes / len(leaders), len(leaders)
    return ring.rotation([leaders], share, parts, lambda _, leader: (place[leader],), reduces=reduces)


def _by_server(group: Group) -> Group:
    return Group(group.size, rings=(tuple(position for server in group.servers for position in server),))
