"""What changes the network of a scenario from outside: links that degrade for a while, and traffic of other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from scenarios.specification.network import BackgroundTraffic
from scenarios.specification.specification import Specification
from simulator.cluster import Cluster
from simulator.document import Document
from simulator.engine.conditions import BandwidthChange, Conditions, Traffic
from simulator.errors import ClusterError
from simulator.lookup import nearest
from simulator.units import show


def conditions(specification: Specification, cluster: Cluster, document: Document) -> Conditions:
    """Return what changes the links of *cluster*.

    Raises `ScenarioError` at a link or device that there is not, and at a rate that no link on the way carries.
    """
    traffic = enumerate(specification.network.background)
    return Conditions(
        list(_changes(specification, cluster, document)), [_traffic(*one, cluster, document) for one in traffic]
    )


def _changes(specification: Specification, cluster: Cluster, document: Document) -> Iterator[BandwidthChange]:
    section = specification.simulation.variation
    for place, one in enumerate(section.links if section else ()):
        for ends in (one.link, one.link[::-1]):
            try:
                normal = cluster.links[cluster.number(*ends)].bandwidth
            except KeyError:
                path = ("simulation", "variation", "links", place, "link")
                raise document.error(path, f"there is no link from {ends[0]} to {ends[1]}") from None
            for number in range(one.times):
                begin = one.begin + number * (one.every or 0.0)
                yield BandwidthChange(begin, *ends, normal * one.bandwidth)
                yield BandwidthChange(begin + one.duration, *ends, normal)


def _traffic(place: int, given: BackgroundTraffic, cluster: Cluster, document: Document) -> Traffic:
    path = ("network", "background", place)
    for key, device in (("from", given.source), ("to", given.target)):
        if device not in cluster.devices:
            near = ", ".join(nearest(device, list(cluster.devices))[:4])
            raise document.error((*path, key), f'{cluster.name} has no device "{device}"; near it are: {near}')
    try:
        route = cluster.route(given.source, given.target)
    except ClusterError as error:
        raise document.error(path, str(error)) from None
    slowest = min(route, key=lambda number: cluster.links[number].bandwidth)
    bandwidth = cluster.links[slowest].bandwidth
    if given.rate > bandwidth:
        source, target = cluster.ends[slowest]
        limit = f"the link from {source} to {target} carries {show(bandwidth, 'bandwidth')}"
        raise document.error(
            (*path, "rate"), f"{show(given.rate, 'bandwidth')} cannot be sent: {limit}; give at most that"
        )
    return Traffic(given.source, given.target, given.rate, given.begin, inf if given.end is None else given.end)
