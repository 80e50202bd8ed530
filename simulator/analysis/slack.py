"""Slack: how much later a span could end without a longer makespan.

It is computed by a backward pass over all dependencies. Durations are those of the timeline, so contention is frozen:
each span has the bandwidth and processor share that it had, and servers keep their order. Partners in a communication
end together. A buffered send that arrives before its receive is treated as if it arrived with it, so the slack of such
a send is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.span_causes import Causes, Spans
from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Floats, Integers, Timeline


class Constraints(NamedTuple):
    """Arrays of one length: the span *before* could end *gap* (s) later without a delay of the span *after*."""

    before: Integers
    after: Integers
    gap: Floats


def slack(timeline: Timeline) -> dict[int, Floats]:
    """Return the slack (s) of every span of a simulated *timeline*, by representative, in the order of its columns.

    Raises `SimulatorError` if the timeline does not have the spans of all ranks.
    """
    causes = Causes(timeline)
    spans = [causes.spans(rank) for rank in timeline.distinct_ranks]
    firsts = np.cumsum([0, *(len(own.op) for own in spans)]).tolist()
    # spans of all ranks are numbered one rank after the other
    parts = [part for own, first in zip(spans, firsts, strict=False) for part in _of_rank(own, first)]
    parts += _of_deliveries(causes, spans, firsts)
    parts += _of_servers(causes, dict(zip(timeline.distinct_ranks, firsts, strict=False)))
    constraints = Constraints(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    end, communication = (np.concatenate([getattr(own, name) for own in spans]) for name in ("end", "communication"))
    left = _backward(_nodes(communication, causes.buffered), timeline.makespan - end, constraints)
    result = {}
    for rank, own, (first, after) in zip(timeline.distinct_ranks, spans, pairwise(firsts), strict=True):
        result[rank] = np.empty(after - first)
        result[rank][own.row] = left[first:after]
    return result


def _of_rank(own: Spans, first: int) -> Iterator[Constraints]:
    """Yield the constraints between spans of a rank, numbered from *first*: order of streams, and `after`."""
    after = np.flatnonzero(~own.heads)
    yield _between(own, after - 1, after, first)
    waiting, awaited = own.structure.dependencies
    steps = np.arange(own.steps).reshape(-1, 1)
    yield _between(own, own.index(steps, awaited).ravel(), own.index(steps, waiting).ravel(), first)


def _between(own: Spans, before: Integers, after: Integers, first: int) -> Constraints:
    # a receive that ends with a delivery may be ready as late as the delivery
    needed = np.where(own.delivery[after], own.end[after], own.begin[after])
    # a receive is posted before the bytes of the receive before it arrive
    left = np.minimum(own.end[before], own.ready[after])
    return Constraints(before + first, after + first, np.maximum(0.0, needed - left))


def _of_deliveries(causes: Causes, spans: list[Spans], firsts: list[int]) -> Iterator[Constraints]:
    """Yield the constraints of receives on buffered sends: a later end of the send delays the delivery as much."""
    if not len(causes.buffered):
        return
    number = np.concatenate([own.communication for own in spans])
    sends = np.concatenate([own.structure.buffered[own.op] for own in spans])
    found = np.flatnonzero(np.isin(number, causes.buffered))
    found = found[np.lexsort((~sends[found], number[found]))]
    # each send stands before its receive
    before = found[sends[found]]
    yield Constraints(before, found[~sends[found]], np.zeros(len(before)))


def _of_servers(causes: Causes, first_of: dict[int, int]) -> Iterator[Constraints]:
    """Yield the constraints between consecutive spans at a server, which keeps its order."""
    for rank, first in first_of.items():
        own = causes.spans(rank)
        for number, name in enumerate(own.structure.servers):
            service = causes.services[name]
            at = np.flatnonzero(own.structure.server[own.op] == number)
            last = np.searchsorted(service.begin, own.begin[at]) - 1
            at, last = at[last >= 0], last[last >= 0]
            before = service.span[last] + np.array([first_of[other] for other in service.representative[last].tolist()])
            yield Constraints(before.astype(np.int64), at + first, np.maximum(0.0, own.begin[at] - service.end[last]))


def _nodes(communication: Integers, buffered: Integers) -> Integers:
    """Return a number for each span, from 0 without gaps; partners, which end together, have the same number."""
    alone = (communication == NO_COMMUNICATION) | np.isin(communication, buffered)
    node = np.where(alone, np.cumsum(alone) + communication.max(initial=0), communication)
    _, node = np.unique(node, return_inverse=True)
    return node


def _backward(node: Integers, left: Floats, constraints: Constraints) -> Floats:
    """Return the slack of each span: the least over all chains of *constraints* after it.

    *node*: the number of each span by `_nodes`. *left* (s): from the end of each span to the end of the timeline.
    """
    count = int(node.max(initial=-1)) + 1
    least = np.full(count, np.inf)
    np.minimum.at(least, node, left)
    order = np.argsort(node[constraints.after], kind="stable")
    starts = np.searchsorted(node[constraints.after][order], np.arange(count + 1)).tolist()
    followers = np.bincount(node[constraints.before], minlength=count).tolist()
    before, gap = node[constraints.before][order].tolist(), constraints.gap[order].tolist()
    slacks: list[float] = least.tolist()
    done = [number for number, waiting in enumerate(followers) if not waiting]
    while done:
        number = done.pop()
        own = slacks[number]
        for place in range(starts[number], starts[number + 1]):
            earlier = before[place]
            slacks[earlier] = min(slacks[earlier], own + gap[place])
            followers[earlier] -= 1
            if not followers[earlier]:
                done.append(earlier)
    return np.array(slacks)[node]
