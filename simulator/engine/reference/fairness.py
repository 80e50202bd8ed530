"""Weighted max-min fair rates: no rate can be raised without lowering another rate that is no greater.

A flow i has rate x_i and takes w_li x_i of the capacity of link l. The max-min fair vector is the unique one in which
every flow has a bottleneck: a saturated link on which no other flow is faster (Bertsekas and Gallager, "Data Networks",
2nd edition, 6.5.2). Progressive filling finds it. All rates are raised together until a link saturates. The flows of
this link keep their rate, and the others share what is left. The bound of a flow is treated as a link of its own.

A link is finished when the rates of all its flows are fixed. Its remaining capacity is not tested: it is a difference,
and rounding may leave a residue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf


def max_min(
    demands: Sequence[Mapping[int, float]], bounds: Sequence[float], capacity: Mapping[int, float] | Sequence[float]
) -> list[float]:
    """The fair rate of each flow, in units of *capacity* per weight.

    *demands* has for each flow its weight on each link, by the number of the link (from 0). *bounds* has the rate that
    the flow cannot exceed. *capacity* is by number of the link. A flow without link and bound has an infinite rate.

    >>> max_min([{0: 1.0}, {0: 1.0, 1: 1.0}], [float("inf")] * 2, [10.0, 2.0])
    [8.0, 2.0]
    """
    unfixed: dict[int, dict[int, float]] = {}  # by link: the weights of its flows that have no rate yet
    left: dict[int, float] = {}
    links = [dict(demand) for demand in demands]
    for flow, bound in enumerate(bounds):
        if bound < inf:
            links[flow][-1 - flow] = 1.0  # the number of the link that stands for the bound
        for link, weight in links[flow].items():
            unfixed.setdefault(link, {})[flow] = weight
            left.setdefault(link, capacity[link] if link >= 0 else bound)
    rates = [inf] * len(links)
    while unfixed:
        rate, bottleneck = min((max(0.0, left[link]) / sum(on.values()), link) for link, on in unfixed.items())
        for flow in list(unfixed[bottleneck]):
            rates[flow] = rate
            for link, weight in links[flow].items():
                left[link] -= weight * rate
                del unfixed[link][flow]
                if not unfixed[link]:
                    del unfixed[link]
    return rates
