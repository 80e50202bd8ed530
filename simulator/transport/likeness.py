"""Groups that lie alike on the cluster share their plans: what was planned for one is moved to the links of another.

Two groups lie alike under a plan if every transfer of it crosses links of the same sort in the same order, and two
transfers share a link in one group where they share it in the other. Then latencies, weights and rates are the same,
and only the numbers of the links differ. So thousands of sibling groups cost one search and as many look-ups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
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
    """How *devices* lie under *transfers*: links are told apart by their order of first use."""
    number: dict[int, int] = {}
    rows = []
    for sender, receiver in transfers:
        path = route(cluster, devices[sender], devices[receiver])
        within = cluster.node_of(devices[sender]) == cluster.node_of(devices[receiver])
        rows.append((within, *((number.setdefault(link, len(number)), cluster.sort(link)) for link in path)))
    return Lie(tuple(rows), tuple(number))


def moved(plan: Plan, source: Sequence[int], target: Sequence[int]) -> Plan:
    """*plan* on the links *target*, each in place of that of *source*."""
    links = dict(zip(source, target, strict=True))
    flows = dict.fromkeys(flow for phase in dict.fromkeys(plan.phases) for flow in phase.flows)
    there = {flow: replace(flow, links=_all(links, flow.links), rows=_all(links, flow.rows)) for flow in flows}
    phases = {phase: replace(phase, flows=tuple(there[flow] for flow in phase.flows)) for phase in set(plan.phases)}
    return replace(plan, phases=tuple(phases[phase] for phase in plan.phases))


def _all(links: dict[int, int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(links[number] for number in numbers)
