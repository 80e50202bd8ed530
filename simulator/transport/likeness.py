"""Groups that lie alike on the cluster share their plans: what was planned for one is moved to the links of another.

Two groups lie alike under transfers if each of them crosses links of the same sort in the same order, and two share a
link in one group where they share it in the other. Then latencies, weights and rates are the same, and only the numbers
of the links differ. So thousands of sibling groups cost one search and as many look-ups.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

from simulator.cluster import Cluster
from simulator.plan import Plan
from simulator.step import Transfer
from simulator.transport.wires import route


class Lie(NamedTuple):
    """How a group lies: a *pattern* that groups which lie alike have in common, and the *links* in place in it."""

    pattern: Hashable
    links: tuple[int, ...]


def lie(cluster: Cluster, transfers: Iterable[Transfer], devices: Sequence[str]) -> Lie:
    """How *devices* lie under *transfers*: links are told apart by their order of first use, as servers are.

    Where the cluster is hierarchical, the ways inside servers and those between the first device and all others, of its
    own server another one, tell the rest: two devices meet in the tree where their ways to a third do.
    """
    number: dict[int, int] = {}
    nodes: dict[int | str, list[int]] = {}
    for place, device in enumerate(devices):
        nodes.setdefault(cluster.node_of(device), []).append(place)
    rows: list[Hashable] = [tuple(map(tuple, nodes.values()))]
    for sender, receiver in _telling(nodes.values()) if cluster.hierarchical and len(devices) > 2 else transfers:
        path = route(cluster, devices[sender], devices[receiver])
        rows.append(tuple((number.setdefault(link, len(number)), cluster.sort(link)) for link in path))
    return Lie(tuple(rows), tuple(number))


def _telling(nodes: Collection[Sequence[int]]) -> Iterator[Transfer]:
    """The transfers inside *nodes*, places by server, and those of each place with the first one of another server."""
    firsts = [places[0] for places in nodes]
    for places in nodes:
        yield from permutations(places, 2)
        for hub in [first for first in firsts[:2] if first != places[0]][:1]:
            yield from ((hub, place) for place in places)
            yield from ((place, hub) for place in places)


def moved(plan: Plan, source: Sequence[int], target: Sequence[int]) -> Plan:
    """*plan* on the links *target*, each in place of that of *source*."""
    links = dict(zip(source, target, strict=True))
    flows = dict.fromkeys(flow for phase in dict.fromkeys(plan.phases) for flow in phase.flows)
    there = {flow: replace(flow, links=_all(links, flow.links), rows=_all(links, flow.rows)) for flow in flows}
    phases = {phase: replace(phase, flows=tuple(there[flow] for flow in phase.flows)) for phase in set(plan.phases)}
    return replace(plan, phases=tuple(phases[phase] for phase in plan.phases))


def _all(links: dict[int, int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(links[number] for number in numbers)
