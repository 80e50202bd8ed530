"""Traffic: bytes that ranks send, by axis of the mesh, use of the links of the cluster, and the load of the cables
between switches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.intervals import averages
from clustersim.simulator.analysis.metrics import families
from clustersim.simulator.analysis.timeline import Floats, FlowLinks, Integers, LinkBins, Timeline
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import STORES
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError

LINKS_AT_ONCE = 2_000
"""Links with their load over time in memory at once: 10 MB with 600 bins."""


def by_axis(timeline: Timeline) -> dict[str, float]:
    """Return the bytes that all ranks together send in one training step, by family of axis, inner axis first."""
    steps = timeline.steps_run
    return {name: timeline.axis_bytes.get(name, 0.0) / steps for name in families(timeline.schedule)}


def by_link_kind(timeline: Timeline) -> dict[str, float]:
    """Return the bytes on all links in one training step, by kind of link, in the order of the cluster's links.

    A transfer counts on every link that it crosses.
    """
    if timeline.cluster is None:
        return {}
    total = dict.fromkeys(_kinds(timeline), 0.0)
    for number, nbytes in timeline.link_bytes.items():
        total[timeline.cluster.links[number].kind] += nbytes * timeline.multiplicity.get(number, 1) / timeline.steps_run
    return total


def utilisation(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Return the used share of the bandwidth over the whole simulated time, by kind of link.

    For an asynchronous order it is the share in its steady state. ``mean``: over all links of the kind in the cluster,
    idle ones included; ``max``: of the busiest link. Empty if transfers did not share links (fidelity ``alpha_beta``):
    bytes over bandwidth are no share then.
    """
    if timeline.cluster is None or not timeline.makespan or not timeline.links_shared:
        return {}
    links = timeline.cluster.links
    count = links.kinds
    steady = timeline.schedule.batches > 1
    seconds = timeline.step_time * timeline.steps_run if steady else timeline.makespan
    kinds = _kinds(timeline)
    mean, most = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    for number, nbytes in timeline.link_bytes.items():
        kind, share = links[number].kind, nbytes / (links[number].bandwidth * seconds)
        mean[kind] += share * timeline.multiplicity.get(number, 1) / count[kind]
        most[kind] = max(most[kind], share)
    return {kind: {"mean": mean[kind], "max": most[kind]} for kind in kinds}


def _kinds(timeline: Timeline) -> list[str]:
    """The kinds of links, without memory and drives that carried nothing."""
    assert timeline.cluster is not None
    links = timeline.cluster.links
    used = {links[number].kind for number, nbytes in timeline.link_bytes.items() if nbytes}
    return [kind for kind in links.kinds if kind in used or kind not in STORES]


def carried(timeline: Timeline) -> dict[int, float]:
    """Return the bytes on each link as the integral of its use over time; the same as `Timeline.link_bytes`.

    Of equal links (by folding) only the representative is present. Empty if the use was not recorded.
    """
    if timeline.link_use is None:
        return {}
    (flow, begin, end, rate), flows = timeline.link_use
    sent = np.bincount(flow, rate * (end - begin), len(flows.starts) - 1)
    numbers, place = np.unique(flows.links, return_inverse=True)
    nbytes = np.bincount(place, flows.crossings * sent[_flow_of_entry(flows)])
    return dict(zip(numbers.tolist(), nbytes.tolist(), strict=True))


def _flow_of_entry(flows: FlowLinks) -> Integers:
    """Return the flow of each entry of ``flows.links``."""
    return np.repeat(np.arange(len(flows.starts) - 1), np.diff(flows.starts))


class LinkUtilisation(NamedTuple):
    """The used share of the bandwidth in each bin between *edges* (s), for the links of one kind.

    *mean*: over all links of the kind. *busiest*: of the link, number *link*, with most bytes in the whole window.
    *highest*: of the fullest link of each bin.
    """

    edges: Floats
    mean: Floats
    busiest: Floats
    highest: Floats
    link: int


def over_time(
    timeline: Timeline, window: tuple[float, float] | None = None, bins: int = 600
) -> dict[str, LinkUtilisation]:
    """Return link use over *window* (default: all) by kind of link, busiest kind first, without idle kinds.

    Raises `SimulatorError` if the timeline has no cluster, or no use of its links.
    """
    cluster = _cluster(timeline)
    if not timeline.links_shared:
        raise SimulatorError("fidelity alpha_beta: transfers share no link, so links have no use; try flow")
    if timeline.totals is not None:
        return _from_bins(timeline.totals.link_bins, window or (0.0, timeline.makespan))
    if timeline.link_use is None or not len(timeline.link_use.intervals.flow):
        raise SimulatorError("this timeline holds no use of links over time: nothing was sent, or it was not recorded")
    edges = np.linspace(*(window or (0.0, timeline.makespan)), bins + 1)
    intervals, flows = timeline.link_use
    rates = averages(intervals.begin, intervals.end, intervals.rate, intervals.flow, len(flows.starts) - 1, edges)
    kinds = list(cluster.links.kinds)
    kind_of = cluster.links.some(flows.links, lambda link: kinds.index(link.kind))
    entries = _Entries(flows.links, _flow_of_entry(flows), flows.crossings / cluster.bandwidths_of(flows.links))
    result = {}
    for number in dict.fromkeys(kind_of.tolist()):
        kind = kinds[int(number)]
        mine = np.flatnonzero(kind_of == number)
        count = cluster.links.kinds[kind]
        own = _Entries(entries.link[mine], entries.flow[mine], entries.share[mine])
        result[kind] = _use(own, rates, edges, timeline, count)
    return dict(sorted(result.items(), key=lambda item: -float(item[1].busiest.sum())))


def _from_bins(bins: LinkBins, window: tuple[float, float]) -> dict[str, LinkUtilisation]:
    """Return the link use of a run with totals by kind only, without single links."""
    shown = np.flatnonzero((bins.edges[1:] > window[0]) & (bins.edges[:-1] < window[1]))
    edges = bins.edges[shown[0] : shown[-1] + 2]
    unknown = np.full(len(shown), np.nan)
    means = {kind: share[shown] for kind, share in zip(bins.kinds, bins.share, strict=True) if share[shown].any()}
    return {
        kind: LinkUtilisation(edges, mean, unknown, unknown, -1)
        for kind, mean in sorted(means.items(), key=lambda item: -float(item[1].sum()))
    }


class _Entries(NamedTuple):
    """Arrays of one length: *flow* uses *share* of the bandwidth of *link* for each byte/s of its rate."""

    link: Integers
    flow: Integers
    share: Floats


def _use(entries: _Entries, rates: Floats, edges: Floats, timeline: Timeline, count: int) -> LinkUtilisation:
    """Return the use of the links of *entries*, all of one kind with *count* links; *rates* by flow and bin."""
    members, place = np.unique(entries.link, return_inverse=True)
    weight = np.array([timeline.multiplicity.get(number, 1) for number in members.tolist()])
    whole = np.bincount(entries.flow, entries.share * weight[place], len(rates)) @ rates
    totals = np.bincount(place, entries.share * rates.sum(axis=1)[entries.flow])
    # of links that differ only by rounding the first, in any order of sums
    top = int(np.flatnonzero(totals >= totals.max() * (1 - 1e-9))[0])
    busiest = _load(entries, place, top, top + 1, rates)[0]
    highest = np.zeros(rates.shape[1])
    for first in range(0, len(members), LINKS_AT_ONCE):
        loads = _load(entries, place, first, first + LINKS_AT_ONCE, rates)
        highest = np.maximum(highest, loads.max(axis=0))
    return LinkUtilisation(edges, whole / count, busiest, highest, int(members[top]))


def _load(entries: _Entries, place: Integers, first: int, last: int, rates: Floats) -> Floats:
    """Return the used share of the bandwidth by bin, for the links at *place* *first* to *last* (excluded)."""
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


@dataclass(frozen=True)
class CableLoad:
    """Bytes on the cables between switches that carry any, one direction each, most first.

    *count*: all cables of the cluster, idle ones included. *busiest*: the (source, target) of the fullest.
    """

    nbytes: Floats
    count: int
    busiest: tuple[str, str]

    @property
    def over_mean(self) -> float:
        """The load of the fullest cable over the mean of those that carry any; 1 if all are equal."""
        return float(self.nbytes[0] / self.nbytes.mean())

    def summary(self) -> dict[str, float]:
        """Return the numbers as `run --json` prints them."""
        return {
            "cables": self.count,
            "used": len(self.nbytes),
            "mean_bytes": float(self.nbytes.mean()),
            "max_bytes": float(self.nbytes[0]),
            "max_over_mean": self.over_mean,
        }

    def told(self) -> str:
        """Return the numbers in a sentence."""
        source, target = self.busiest
        return (
            f"cables between switches: {len(self.nbytes):,} of {self.count:,} carry bytes; the fullest, {source} to "
            f"{target}, has {self.over_mean:.2f} times their mean"
        )


def cable_load(timeline: Timeline) -> CableLoad | None:
    """Return the load of the cables of *timeline*. None if its cluster leaves no choice among paths, or all are idle.

    Bytes are those of all steps.
    """
    cluster = timeline.cluster
    if cluster is None or not cluster.chooses:
        return None
    carrying = {n: nbytes for n, nbytes in timeline.link_bytes.items() if n in cluster.cables and nbytes > 0}
    if not carrying:
        return None
    numbers = sorted(carrying, key=lambda number: (-carrying[number], number))
    counts = [timeline.multiplicity.get(number, 1) for number in numbers]
    nbytes = np.repeat([carrying[number] for number in numbers], counts)
    return CableLoad(nbytes, len(cluster.cables), cluster.ends[numbers[0]])
