"""A dragonfly: groups of routers joined each with each, and between each pair of groups one bundle of global links."""

from __future__ import annotations

from itertools import combinations, count
from math import ceil

from simulator.document import Count, Ratio
from topologies.network import Network, Port, Way


def dragonfly(
    network: Network, routers: Count | None = None, ports: Count | None = None, oversubscription: Ratio = 1.0
) -> Way:
    """*routers* in a group and *ports* for NICs at a router (default: the smallest balanced dragonfly that is enough).

    *oversubscription*: the bandwidth of a group's NICs over that of its global links, which are shared out evenly
    among the other groups. Routes are minimal: to the router with the global link, across, to the router of the
    target. Kim, Dally, Scott and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology" (ISCA 2008).
    """
    number = len(network.ports)
    if routers is None or ports is None:
        balanced = next(p for p in count(1) if 2 * p * p * (2 * p * p + 1) >= number)
        ports = ports or (balanced if routers is None else max(1, routers // 2))
        routers = routers or 2 * ports
    size = routers * ports
    place: dict[int, tuple[int, str]] = {}
    groups: list[list[str]] = []
    for begin in range(0, number, size):
        members = network.ports[begin : begin + size]
        group = [network.switch("router") for _ in range(ceil(len(members) / ports))]
        for index, router in enumerate(group):
            here = members[index * ports : (index + 1) * ports]
            network.plug(here, router)
            place.update((port.number, (len(groups), router)) for port in here)
        for pair in combinations(group, 2):
            network.join(*pair, network.cable.bandwidth)
        groups.append(group)
    injection = sum(port.link.bandwidth for port in network.ports[:size])
    for a, b in combinations(range(len(groups)), 2):
        bandwidth = injection / oversubscription / (len(groups) - 1)
        network.join(gateway(groups, a, b), gateway(groups, b, a), bandwidth)

    def way(source: Port, target: Port) -> list[str]:
        (here, first), (there, last) = place[source.number], place[target.number]
        passed = [first, last]
        if here != there:
            passed = [first, gateway(groups, here, there), gateway(groups, there, here), last]
        return list(dict.fromkeys(passed))

    return way


def gateway(groups: list[list[str]], here: int, there: int) -> str:
    """The router of group *here* that has the global links to group *there*: they are spread evenly and in order."""
    group = groups[here]
    return group[(there - (there > here)) * len(group) // (len(groups) - 1)]
