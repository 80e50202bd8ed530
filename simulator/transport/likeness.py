"""Groups that lie alike on the cluster share their plans: what was planned for one is moved to the links of another.

Two groups lie alike under a plan if every transfer of it crosses links of the same sort in the same order, and two
transfers share a link in one group where they share it in the other. Then latencies, weights and rates are the same,
and only the numbers of the links differ. So thousands of sibling groups cost one search and as many look-ups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from simulator.cluster import Cluster
from simulator.plan import Plan
from simulator.step import Transfer
from simulator.transport.wires import route


def moved(
    cluster: Cluster, plan: Plan, transfers: Iterable[Transfer], source: Sequence[str], target: Sequence[str]
) -> Plan | None:
    """*plan*, made of *transfers* between devices *source*, for the links of *target*; None if they lie otherwise."""
    links = _translation(cluster, transfers, source, target)
    if links is None:
        return None
    flows = dict.fromkeys(flow for phase in dict.fromkeys(plan.phases) for flow in phase.flows)
    there = {flow: replace(flow, links=_all(links, flow.links), rows=_all(links, flow.rows)) for flow in flows}
    phases = {phase: replace(phase, flows=tuple(there[flow] for flow in phase.flows)) for phase in set(plan.phases)}
    return replace(plan, phases=tuple(phases[phase] for phase in plan.phases))


def _all(links: dict[int, int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(links[number] for number in numbers)


def _translation(
    cluster: Cluster, transfers: Iterable[Transfer], source: Sequence[str], target: Sequence[str]
) -> dict[int, int] | None:
    """Which link of *target* stands where a link of *source* does; None if there is no such one-to-one map."""
    links: dict[int, int] = {}
    for sender, receiver in transfers:
        here, there = route(cluster, source[sender], source[receiver]), route(cluster, target[sender], target[receiver])
        if len(here) != len(there):
            return None
        if (cluster.node_of(source[sender]) == cluster.node_of(source[receiver])) != (
            cluster.node_of(target[sender]) == cluster.node_of(target[receiver])
        ):
            return None
        for one, other in zip(here, there, strict=True):
            if links.setdefault(one, other) != other or cluster.sort(one) != cluster.sort(other):
                return None
    return links if len(set(links.values())) == len(links) else None
