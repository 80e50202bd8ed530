"""Traffic is what the axes of the mesh send and the links of the cluster carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.analysis.intervals import averages
from simulator.analysis.metrics import families
from simulator.cluster import Cluster
from simulator.errors import SimulatorError
from simulator.schedule import Collective, Schedule, Send
from simulator.schedule.mesh import family
from simulator.timeline import Floats, FlowLinks, Integers, LinkBins, Timeline

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
        total[timeline.cluster.links[number].kind] += nbytes * timeline.multiplicity.get(number, 1) / timeline.steps_run
    return total


def utilisation(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Share of its bandwidth that a link carries, over the whole simulated time, by kind of link.

    Of an asynchronous order it is the share in its steady state. ``mean`` is over all links of the kind in the cluster,
    idle ones included; ``max`` is the busiest link.
    """
    if timeline.cluster is None or not timeline.makespan:
        return {}
    links = timeline.cluster.links
    count = links.kinds
    steady = timeline.schedule.batches > 1
    seconds = timeline.step_time * timeline.steps_run if steady else timeline.makespan
    mean, most = dict.fromkeys(count, 0.0), dict.fromkeys(count, 0.0)
    for number, nbytes in timeline.link_bytes.items():
        kind, share = links[number].kind, nbytes / (links[number].bandwidth * seconds)
        mean[kind] += share * timeline.multiplicity.get(number, 1) / count[kind]
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

    Of links that are equal, as folding finds them, only the one that represents all.
    """
    if timeline.link_use is None:
        return {}
    (flow, begin, end, rate), flows = timeline.link_use
    sent = np.bincount(flow, rate * (end - begin), len(flows.starts) - 1)
    numbers, place = np.unique(flows.links, return_inverse=True)
    nbytes = np.bincount(place, flows.crossings * sent[_flow_of_entry(flows)])
    return dict(zip(numbers.tolist(), nbytes.tolist(), strict=True))


def _flow_of_entry(flows: FlowLinks) -> Integers:
    """The flow of each entry of ``flows.links``."""
    return np.repeat(np.arange(len(flows.starts) - 1), np.diff(flows.starts))


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
    if timeline.totals is not None:
        return _from_bins(timeline.totals.link_bins, window or (0.0, timeline.makespan))
    if timeline.link_use is None or not len(timeline.link_use.intervals.flow):
        raise SimulatorError("this timeline holds no use of links over time: nothing was sent, or it was not recorded")
    edges = np.linspace(*(window or (0.0, timeline.makespan)), bins + 1)
    intervals, flows = timeline.link_use
    rates = averages(intervals.begin, intervals.end, intervals.rate, intervals.flow, len(flows.starts) - 1, edges)
    kinds = list(cluster.links.kinds)
    kind_of, bandwidth = cluster.links.each(lambda link: kinds.index(link.kind)), cluster.bandwidths
    entries = _Entries(flows.links, _flow_of_entry(flows), flows.crossings / bandwidth[flows.links])
    result = {}
    for number in dict.fromkeys(kind_of[flows.links].tolist()):
        kind = kinds[int(number)]
        mine = np.flatnonzero(kind_of[flows.links] == number)
        count = cluster.links.kinds[kind]
        own = _Entries(entries.link[mine], entries.flow[mine], entries.share[mine])
        result[kind] = _use(own, rates, edges, timeline, count)
    return dict(sorted(result.items(), key=lambda item: -float(item[1].busiest.sum())))


def _from_bins(bins: LinkBins, window: tuple[float, float]) -> dict[str, LinkUse]:
    """Link use of a run of which only totals by kind are known: nothing of single links."""
    shown = np.flatnonzero((bins.edges[1:] > window[0]) & (bins.edges[:-1] < window[1]))
    edges = bins.edges[shown[0] : shown[-1] + 2]
    unknown = np.full(len(shown), np.nan)
    means = {kind: share[shown] for kind, share in zip(bins.kinds, bins.share, strict=True) if share[shown].any()}
    return {
        kind: LinkUse(edges, mean, unknown, unknown, -1)
        for kind, mean in sorted(means.items(), key=lambda item: -float(item[1].sum()))
    }


class _Entries(NamedTuple):
    """Arrays of one length: *flow* takes *share* of the bandwidth of *link* for each byte/s of its rate."""

    link: Integers
    flow: Integers
    share: Floats


def _use(entries: _Entries, rates: Floats, edges: Floats, timeline: Timeline, count: int) -> LinkUse:
    """The use of the links of *entries*, all of one kind that has *count* links; *rates* by flow and bin."""
    members, place = np.unique(entries.link, return_inverse=True)
    weight = np.array([timeline.multiplicity.get(number, 1) for number in members.tolist()])
    whole = np.bincount(entries.flow, entries.share * weight[place], len(rates)) @ rates
    totals = np.bincount(place, entries.share * rates.sum(axis=1)[entries.flow])
    # of links that differ by rounding the first, whatever the order of sums
    top = int(np.flatnonzero(totals >= totals.max() * (1 - 1e-9))[0])
    busiest = _load(entries, place, top, top + 1, rates)[0]
    highest = np.zeros(rates.shape[1])
    for first in range(0, len(members), LINKS_AT_ONCE):
        loads = _load(entries, place, first, first + LINKS_AT_ONCE, rates)
        highest = np.maximum(highest, loads.max(axis=0))
    return LinkUse(edges, whole / count, busiest, highest, int(members[top]))


LINKS_AT_ONCE = 2_000
"""Links whose load over time is in memory at once: 10 MB with 600 bins."""


def _load(entries: _Entries, place: Integers, first: int, last: int, rates: Floats) -> Floats:
    """Share of the bandwidth in use by bin, for the links at *place* *first* to *last* (excluded)."""
    mine = np.flatnonzero((place >= first) & (place < last))
    mine = mine[np.argsort(place[mine], kind="stable")]
    starts = np.flatnonzero(np.diff(place[mine], prepend=-1))
    loads: Floats = np.add.reduceat(entries.share[mine, None] * rates[entries.flow[mine]], starts, axis=0)
    return loads


def _cluster(timeline: Timeline) -> Cluster:
    if timeline.cluster is None:
        raise SimulatorError("this timeline was measured, not simulated, and knows no links")
    return timeline.cluster


def _uses(timeline: Timeline) -> tuple[Integers, Floats, Floats, Floats]:
    """Link, begin, end and rate of every use of every link."""
    if timeline.link_use is None:
        none = np.zeros(0)
        return none.astype(np.int64), none, none, none
    (flow, begin, end, rate), (starts, links, crossings) = timeline.link_use
    sizes = np.diff(starts)[flow]
    place = np.repeat(starts[flow] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    return links[place], np.repeat(begin, sizes), np.repeat(end, sizes), np.repeat(rate, sizes) * crossings[place]
