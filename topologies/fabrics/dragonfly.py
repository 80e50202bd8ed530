"""A dragonfly: groups of fully connected routers, with global links between each pair of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, count
from math import ceil

import numpy as np

from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Count, Flag, Ratio
from clustersim.topologies.fabrics._network import FabricRouter, Network, Port, Routing


def dragonfly(
    network: Network,
    routers: Count | None = None,
    ports: Count | None = None,
    oversubscription: Ratio = 1.0,
    nics_apart: Flag = False,
) -> FabricRouter:
    """*routers*: of a group. *ports*: of a router for NICs. Default: the smallest balanced dragonfly that suffices.

    *oversubscription*: the bandwidth of a group's NICs over that of its global links. These are spread evenly over the
    other groups, and those to one group over its routers. *nics_apart*: each NIC of a node has a router of its own, as
    in a chassis of HPE's Cray EX. Routes are minimal: to a router with a global link, across, to the router of the
    target. Kim, Dally, Scott and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology" (ISCA 2008).
    """
    number = len(network.ports)
    if routers is None or ports is None:
        balanced = next(p for p in count(1) if 2 * p * p * (2 * p * p + 1) >= number)
        ports = ports or (balanced if routers is None else max(1, routers // 2))
        routers = routers or 2 * ports
    size = routers * ports
    place: dict[int, tuple[int, int]] = {}
    groups: list[list[int]] = []
    for begin in range(0, number, size):
        plugs = _plugs(np.arange(begin, min(begin + size, number)), network.ports.rail, ports, nics_apart)
        place |= {port: (len(groups), router) for router, plugged in enumerate(plugs) for port in plugged.tolist()}
        groups.append(_group(network, plugs))
    _join_groups(network, groups, network.ports.bandwidth(np.arange(min(size, number))) / oversubscription)

    return MinimalPaths(network.routing, groups, place)


@dataclass(frozen=True)
class MinimalPaths:
    """Paths through a dragonfly over one global link. *place*: by port its group, and its router in the group.

    Each global link between two groups gives a path. Routing by ``auto`` and ``static`` chooses it by the router of the
    sender.
    """

    routing: Routing
    groups: Sequence[Sequence[int]]
    place: Mapping[int, tuple[int, int]]

    def __call__(self, source: Port, target: Port) -> list[int]:
        """Return the routers of the path that the sender's router chooses."""
        return self._path(source, target, self.place[source.number][1])

    def paths(self, source: Port, target: Port, connection: int) -> list[list[int]]:
        """Return the routers of each path that packets between two ports take; each path has an equal share."""
        (here, first), (there, _) = self.place[source.number], self.place[target.number]
        if here == there or self.routing.policy in ("auto", "static"):
            return [self._path(source, target, first)]
        if self.routing.policy == "adaptive":
            every = range(len(gateways(self.groups, here, there)))
            return [self._path(source, target, number) for number in every]
        hashes = self.routing.hashes(source.number, target.number, connection)
        return [self._path(source, target, number) for number in hashes]

    def _path(self, source: Port, target: Port, number: int) -> list[int]:
        """The path over the global link that *number* chooses."""
        (here, first), (there, last) = self.place[source.number], self.place[target.number]
        passed = [self.groups[here][first], self.groups[there][last]]
        if here != there:
            links = gateways(self.groups, here, there)
            passed[1:1] = links[number % len(links)]
        return list(dict.fromkeys(passed))


def _group(network: Network, plugs: Sequence[Indices]) -> list[int]:
    """Add a group of fully connected routers, one for each of *plugs*, its ports; return the routers."""
    routers = [network.switch("router") for _ in plugs]
    for router, plugged in zip(routers, plugs, strict=True):
        network.plug(plugged, router)
    for pair in combinations(routers, 2):
        network.join(*pair, network.cable.bandwidth)
    return routers


def _join_groups(network: Network, groups: Sequence[Sequence[int]], bandwidth: float) -> None:
    """Join each pair of *groups* by global links. *bandwidth* (bytes/s): of all global links of one group."""
    for a, b in combinations(range(len(groups)), 2):
        links = gateways(groups, a, b)
        for pair in links:
            network.join(*pair, bandwidth / (len(groups) - 1) / len(links))


def gateways(groups: Sequence[Sequence[int]], here: int, there: int) -> list[tuple[int, int]]:
    """Return the pairs of routers of groups *here* and *there* that global links join, spread evenly and in order."""
    return list(zip(_towards(groups, here, there), _towards(groups, there, here), strict=False))


def _towards(groups: Sequence[Sequence[int]], here: int, there: int) -> Sequence[int]:
    """The routers of group *here* with links to group *there*."""
    group, others = groups[here], len(groups) - 1
    first = (there - (there > here)) * len(group) // others
    return group[first : first + max(1, len(group) // others)]


def _plugs(members: Indices, rail: Indices, ports: int, nics_apart: bool) -> list[Indices]:
    """The ports at each router of a group, at most *ports* each: in order, or each NIC of a node at another router.

    *members*: the ports of the group. *rail*: by port.
    """
    if not nics_apart:
        return [members[begin : begin + ports] for begin in range(0, len(members), ports)]
    rails = np.unique(rail[members]).tolist()
    of = {number: members[rail[members] == number] for number in rails}
    chassis = range(ceil(max(map(len, of.values())) / ports))
    plugs = [of[number][place * ports : (place + 1) * ports] for place in chassis for number in rails]
    return [plug for plug in plugs if len(plug)]
