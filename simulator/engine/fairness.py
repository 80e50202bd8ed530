"""Rates are weighted max-min fair: none can be raised without lowering one that is no greater.

A flow i moves each of its transfers at rate x_i and takes w_li x_i of link l. The max-min fair vector is the unique
one in which every flow has a bottleneck: a full link on which no flow is faster (Bertsekas and Gallager, "Data
Networks", 6.5.2). Progressive filling finds it: raise all rates together; when a link is full, its flows stay.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeVar

F = TypeVar("F", bound=Hashable)


def max_min(
    demands: Mapping[F, Mapping[int, float]], capacity: Sequence[float], bounds: Mapping[F, float] | None = None
) -> dict[F, float]:
    """The fair rate of each flow, in units of *capacity* per weight.

    *demands* maps a flow to the weights with which it lies on links, by number; *capacity* is by link; *bounds* are
    rates that flows cannot exceed. A flow on no link and without bound has an infinite rate.

    >>> max_min({"a": {0: 1.0}, "b": {0: 1.0, 1: 1.0}}, [10.0, 2.0])
    {'b': 2.0, 'a': 8.0}
    """
    weight: dict[int, float] = {}
    flows: dict[int, list[F]] = {}
    for flow, links in demands.items():
        for link, w in links.items():
            weight[link] = weight.get(link, 0.0) + w
            flows.setdefault(link, []).append(flow)
    left = {link: capacity[link] for link in weight}
    rates: dict[F, float] = {}
    # a bound is a link of the flow's own, numbered below zero
    for number, flow in enumerate(demands):
        bound = bounds.get(flow, inf) if bounds else inf
        if bound < inf:
            demands = {**demands, flow: {**demands[flow], -1 - number: 1.0}}
            weight[-1 - number], left[-1 - number], flows[-1 - number] = 1.0, bound, [flow]
        elif not demands[flow]:
            rates[flow] = inf
    # a lazy heap: a link's level only rises as flows are fixed elsewhere, so a stale entry is one that is too low
    heap = [(left[link] / weight[link], link) for link in weight]
    heapify(heap)
    open_flows = dict.fromkeys(weight, 0)
    for link, members in flows.items():
        open_flows[link] = len(members)
    while heap:
        level, link = heappop(heap)
        if not open_flows[link]:
            continue
        now = max(0.0, left[link]) / weight[link]
        if now > level:
            heappush(heap, (now, link))
            continue
        for flow in flows[link]:
            if flow in rates:
                continue
            rates[flow] = now
            for other, w in demands[flow].items():
                left[other] -= w * now
                weight[other] -= w
                open_flows[other] -= 1
    return rates
