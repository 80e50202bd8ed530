"""Rates are weighted max-min fair: none can be raised without lowering one that is no greater.

A flow i has rate x_i and takes w_li x_i of the capacity of link l. The max-min fair vector is the unique one in which
every flow has a bottleneck: a saturated link on which no other flow is faster (Bertsekas and Gallager, "Data Networks",
2nd edition, 6.5.2). Progressive filling finds it: raise all rates together; the flows of the link that saturates first
keep their rate; go on with the others on what is left. The bound on a flow's rate is a link that it has to itself.

A link is done when no flow on it is left to fix. What is left of its capacity, a difference that rounding has touched,
decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf


def max_min(
    demands: Sequence[Mapping[int, float]], bounds: Sequence[float], capacity: Mapping[int, float] | Sequence[float]
) -> list[float]:
    """The fair rate of each flow, in units of *capacity* per weight.

    *demands* holds for each flow its weight on each link, by number of the link (from 0), *bounds* the rate that it
    cannot exceed, and *capacity* what each link carries. A flow without link and bound has an infinite rate.

    >>> max_min([{0: 1.0}, {0: 1.0, 1: 1.0}], [float("inf")] * 2, [10.0, 2.0])
    [8.0, 2.0]
    """
    open_flows: dict[int, dict[int, float]] = {}
    left: dict[int, float] = {}
    links = [dict(demand) for demand in demands]
    for flow, bound in enumerate(bounds):
        if bound < inf:
            links[flow][-1 - flow], left[-1 - flow] = 1.0, bound
        for link, weight in links[flow].items():
            open_flows.setdefault(link, {})[flow] = weight
            left.setdefault(link, capacity[link] if link >= 0 else bound)
    rates = [inf] * len(links)
    while open_flows:
        level, bottleneck = min((max(0.0, left[link]) / sum(on.values()), link) for link, on in open_flows.items())
        for flow in list(open_flows[bottleneck]):
            rates[flow] = level
            for link, weight in links[flow].items():
                left[link] -= weight * level
                del open_flows[link][flow]
                if not open_flows[link]:
                    del open_flows[link]
    return rates
