"""Totals of a run that is too large to keep every span; the compiled loop accumulates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from simulator.cluster import Cluster
from simulator.engine.arrays import Array, Lowered, State
from simulator.network.plan import Flow
from simulator.schedule import CATEGORIES, Program, Schedule
from simulator.timeline import LinkBins, Totals

Floats = npt.NDArray[np.float64]

MOST_BINS = 2048
"""The most bins of link use over time: about as many as a chart has pixels."""


class LinkBinner:
    """The mean use of the links of each kind, in time bins of equal length.

    The length of the bins doubles when the simulated time passes the last bin. *multiplicity*: how many equal links a
    link of *flows* represents, by its number; 1 if not given.
    """

    def __init__(self, cluster: Cluster, flows: Sequence[Flow], multiplicity: Mapping[int, int]) -> None:
        self.kinds = tuple(cluster.links.kinds)
        kind_of = cluster.links.each(lambda link: self.kinds.index(link.kind)).astype(np.int64)
        sizes = [len(flow.links) for flow in flows]
        links = np.fromiter((link for flow in flows for link in flow.links), np.int64, sum(sizes))
        crossings = np.fromiter((n for flow in flows for n in flow.crossings), np.float64, sum(sizes))
        crossings *= [multiplicity.get(link, 1) for link in links.tolist()]
        shares = crossings / (cluster.bandwidths * np.bincount(kind_of)[kind_of])[links]
        cells = np.repeat(np.arange(len(flows)), sizes) * len(self.kinds) + kind_of[links]
        shape = len(flows), len(self.kinds)
        self._shares = np.bincount(cells, shares, shape[0] * shape[1]).reshape(shape)
        self._width = 1e-6
        self._used = np.zeros((len(self.kinds), MOST_BINS))  # share of the bandwidth, times seconds

    def add(self, intervals: Array) -> None:
        """Add *intervals* of constant rate, records of `arrays.INTERVAL`."""
        if not len(intervals):
            return
        self._widen(float(intervals["end"].max()))
        begin, end = intervals["begin"] / self._width, intervals["end"] / self._width
        first, last = begin.astype(np.int64), np.minimum(end.astype(np.int64), MOST_BINS - 1)
        for kind in range(len(self.kinds)):
            rate = intervals["rate"] * self._shares[intervals["flow"], kind] * self._width
            # first count the first and the last bin of an interval as full, then subtract what lies outside of it
            change = np.bincount(first, rate, MOST_BINS + 1) - np.bincount(last + 1, rate, MOST_BINS + 1)
            filled = np.cumsum(change)[:MOST_BINS]
            filled -= np.bincount(first, rate * (begin - first), MOST_BINS)
            filled -= np.bincount(last, rate * (last + 1 - end), MOST_BINS)
            self._used[kind] += filled

    def _widen(self, time: float) -> None:
        """Double the length of the bins until they reach *time* (s)."""
        while time > self._width * MOST_BINS:
            self._used[:, : MOST_BINS // 2] = self._used.reshape(len(self.kinds), -1, 2).sum(axis=2)
            self._used[:, MOST_BINS // 2 :] = 0.0
            self._width *= 2

    def bins(self, makespan: float) -> LinkBins:
        """The bins from 0 to *makespan* (s)."""
        self._widen(makespan)
        used = max(1, min(MOST_BINS, int(np.ceil(makespan / self._width))))
        edges = np.minimum(np.arange(used + 1) * self._width, makespan)
        return LinkBins(edges, self.kinds, self._used[:, :used] / np.diff(edges) if makespan else self._used[:, :1])


def seconds_until(state: State, now: float) -> Floats:
    """The time that each rank has spent in each part of the breakdown until *now*, s, of shape ``(ranks, parts)``."""
    seconds = state.seconds.copy()
    seconds[np.arange(len(seconds)), state.ranks["part"]] += now - state.ranks["since"]
    return seconds


def totals(
    schedule: Schedule,
    ranks: Sequence[int],
    parts: Sequence[str],
    low: Lowered,
    state: State,
    first_step: tuple[float, Floats],
    link_bins: LinkBins,
) -> Totals:
    """The totals of a finished run.

    *first_step*: when the first step ended (s), and `seconds_until` then.
    """
    makespan = float(state.clock[0])
    programs = schedule.program_numbers[list(ranks)]
    resident = np.array([[_resident(program, "", name) for name in CATEGORIES] for program in schedule.programs])
    on_host = np.array([[_resident(program, "host.", name) for name in CATEGORIES] for program in schedule.programs])
    count = len(ranks)
    host_pools = low.ranks["host_pool"][:-1] - count
    host = state.pools["peak"][count:] + np.bincount(
        host_pools, on_host[programs].sum(axis=1), len(state.pools) - count
    )
    begin, before = first_step if schedule.steps > 1 else (0.0, np.zeros(1))
    return Totals(
        makespan=makespan,
        window_begin=begin,
        ranks=np.array(ranks, np.int64),
        parts=tuple(parts),
        seconds=seconds_until(state, makespan) - before,
        peak_bytes=state.pools["peak"][:count] + resident[programs].sum(axis=1),
        peak_time=state.pools["time"][:count].copy(),
        peak_by_category=state.peak_held[:count] + resident[programs],
        host_peak_bytes=float(host.max(initial=0.0)),
        link_bins=link_bins,
    )


def _resident(program: Program, prefix: str, category: str) -> float:
    """Bytes of *category* that are resident in the memory of the GPU; with the *prefix* ``host.``, of the host."""
    amounts = program.resident
    if program.on == "host":
        return amounts.get(category, 0.0) + amounts.get(f"host.{category}", 0.0) if prefix else 0.0
    return amounts.get(prefix + category, 0.0)
