"""Traffic is what the axes of the mesh send and the links of the cluster carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from simulator.analysis.intervals import Floats, Integers, averages
from simulator.analysis.metrics import families
from simulator.cluster import Cluster
from simulator.errors import SimulatorError
from simulator.mesh import family
from simulator.schedule import Collective, Schedule, Send
from simulator.timeline import Timeline

LEAST_SENT: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2.0 * (ranks - 1),
    "all_gather": lambda ranks: ranks - 1.0,
    "reduce_scatter": lambda ranks: ranks - 1.0,
    "broadcast": lambda ranks: ranks - 1.0,
    "reduce": lambda ranks: ranks - 1.0,
    "all_to_all": lambda ranks: ranks - 1.0,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
}
"""What all ranks of a collective must send together, in full vectors, by number of ranks, where no switch reduces or
multiplies: every other rank must get the vector or its share of it, and its contribution must leave it. For all but
all-to-all these are the lower bounds of Chan et al., "Collective communication: theory, practice, and experience"
(2007), section 3, summed over the ranks."""


class Overload(NamedTuple):
    """Link number *link* carried *rate* bytes/s from *time* (s) on: more than its bandwidth."""

    link: int
    time: float
    rate: float


def by_axis(timeline: Timeline) -> dict[str, float]:
    """Bytes that all ranks together send in one training step, by family of axis, inner axis first."""
    steps = timeline.steps_run
    return {name: timeline.axis_bytes.get(name, 0.0) / steps for name in families(timeline.schedule)}


def by_link_kind(timeline: Timeline) -> dict[str, float]:
    """Bytes that the links carry in one training step, by kind of link.

    A transfer counts on every link that it crosses. Kinds stand in the order of the cluster's links.
    """
    if timeline.cluster is None:
        return {}
    total = dict.fromkeys(timeline.cluster.links.kinds, 0.0)
    for number, nbytes in timeline.link_bytes.items():
        total[timeline.cluster.links[number].kind] += nbytes * timeline.alike.get(number, 1) / timeline.steps_run
    return total


def utilisation(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Share of its bandwidth that a link carries, over the whole simulated time, by kind of link.

    ``mean`` is over all links of the kind in the cluster, idle ones included; ``max`` is the busiest link.
    """
    if timeline.cluster is None or not timeline.makespan:
        return {}
    links = timeline.cluster.links
    count = links.kinds
    mean, most = dict.fromkeys(count, 0.0), dict.fromkeys(count, 0.0)
    for number, nbytes in timeline.link_bytes.items():
        kind, share = links[number].kind, nbytes / (links[number].bandwidth * timeline.makespan)
        mean[kind] += share * timeline.alike.get(number, 1) / count[kind]
        most[kind] = max(most[kind], share)
    return {kind: {"mean": mean[kind], "max": most[kind]} for kind in count}


def least_bytes(schedule: Schedule) -> dict[str, float]:
    """Bytes that all ranks together must send in one training step, by family of axis.

    Sends count as they stand, collectives with `LEAST_SENT`. Rings, trees and hierarchies of rings send exactly this;
    an algorithm may send more, never less.
    """
    total = dict.fromkeys(families(schedule), 0.0)
    for name, axis in schedule.mesh.axes.items():
        for group in axis.groups:
            for op in schedule.program(group[0]).ops:
                if isinstance(op, Collective) and op.over == name:
                    total[family(name)] += LEAST_SENT[op.kind](len(group)) * op.nbytes
            for rank in group:
                sends = (op for op in schedule.program(rank).ops if isinstance(op, Send) and op.over == name)
                total[family(name)] += sum(op.nbytes for op in sends)
    return total


def carried(timeline: Timeline) -> dict[int, float]:
    """Bytes on each link by the integral of its use over time; equals `Timeline.link_bytes` where use is recorded.

    Of links that are alike, as folding finds them, only the one that stands for all.
    """
    link, begin, end, rate = _uses(timeline)
    numbers, place = np.unique(link, return_inverse=True)
    return dict(zip(numbers.tolist(), np.bincount(place, rate * (end - begin)).tolist(), strict=True))


def overloads(timeline: Timeline, tolerance: float = 1e-9) -> list[Overload]:
    """Where a link carries more than its bandwidth, *tolerance* being relative; nowhere, in a right simulation."""
    cluster = _cluster(timeline)
    link, begin, end, rate = _uses(timeline)
    found = []
    for number in np.unique(link).tolist():
        mine = link == number
        times = np.concatenate((end[mine], begin[mine]))
        order = np.argsort(times, kind="stable")
        load = np.cumsum(np.concatenate((-rate[mine], rate[mine]))[order])
        lasting = np.diff(times[order], append=np.inf) > 1e-12 * timeline.makespan
        over = (load > cluster.links[number].bandwidth * (1 + tolerance)) & lasting
        found += [Overload(number, float(times[order][i]), float(load[i])) for i in np.flatnonzero(over)]
    return sorted(found, key=lambda overload: (overload.time, overload.link))


class LinkUse(NamedTuple):
    """Share of the bandwidth in use in each bin between *edges* (s), for the links of one kind.

    *mean* is over all links of the kind, *busiest* is the link, number *link*, that carries most in the whole window,
    *highest* the fullest link of each bin, which may be another one in each.
    """

    edges: Floats
    mean: Floats
    busiest: Floats
    highest: Floats
    link: int


def over_time(timeline: Timeline, window: tuple[float, float] | None = None, bins: int = 600) -> dict[str, LinkUse]:
    """Link use over *window* (default: all) by kind of link, busiest kind first; kinds that carry nothing are absent.

    Raises `SimulatorError` if the timeline has no cluster or recorded no use of its links.
    """
    cluster = _cluster(timeline)
    if not timeline.uses:
        raise SimulatorError("this timeline holds no use of links over time: nothing was sent, or it was not recorded")
    edges = np.linspace(*(window or (0.0, timeline.makespan)), bins + 1)
    link, begin, end, rate = _uses(timeline)
    result = {}
    for kind, members in _by_kind(cluster, link).items():
        mine = np.isin(link, members)
        place = np.searchsorted(members, link[mine])
        load = averages(begin[mine], end[mine], rate[mine], place, len(members), edges)
        load /= np.array([cluster.links[number].bandwidth for number in members])[:, None]
        alike = np.array([timeline.alike.get(int(number), 1) for number in members])[:, None]
        count = cluster.links.kinds[kind]
        top = int(load.sum(axis=1).argmax())
        result[kind] = LinkUse(
            edges, (load * alike).sum(axis=0) / count, load[top], load.max(axis=0), int(members[top])
        )
    return dict(sorted(result.items(), key=lambda item: -float(item[1].busiest.sum())))


def _cluster(timeline: Timeline) -> Cluster:
    if timeline.cluster is None:
        raise SimulatorError("this timeline was measured, not simulated, and knows no links")
    return timeline.cluster


def _by_kind(cluster: Cluster, link: Integers) -> Mapping[str, Integers]:
    used = np.unique(link).tolist()
    kinds = dict.fromkeys(cluster.links[number].kind for number in used)
    return {kind: np.array([n for n in used if cluster.links[n].kind == kind], np.int64) for kind in kinds}


def _uses(timeline: Timeline) -> tuple[Integers, Floats, Floats, Floats]:
    """Link, begin, end and rate of every use of every link."""
    uses = list(timeline.uses)
    sizes = np.array([len(use.links) for use in uses], np.int64)
    link = np.fromiter(chain.from_iterable(use.links for use in uses), np.int64, sizes.sum())
    rate = np.fromiter(chain.from_iterable(use.links.values() for use in uses), np.float64, sizes.sum())
    begin = np.repeat(np.array([use.begin for use in uses], np.float64), sizes)
    end = np.repeat(np.array([use.end for use in uses], np.float64), sizes)
    return link, begin, end, rate
