"""The critical path, the ranks that have most of its time, and the slack of all spans.

The critical path is the chain of causes from the span that ends last back to the start. Each span on it counts from the
end of its cause to its own end; the sum is the makespan. A faster op that is not on the path saves nothing; a faster op
on the path saves at most its time on the path.

Slack is how much later a span could end without a longer makespan. It is computed by a backward pass over all
dependencies. Durations are those of the timeline, so contention is frozen: each span has the bandwidth and processor
share that it had, and servers keep their order. Partners in a communication end together. A buffered send that arrives
before its receive is treated as if it arrived with it, so the slack of such a send is a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.metrics import keys, part_of
from clustersim.simulator.analysis.span_causes import Causes, SpanPlace, Spans
from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Floats, Integers, Timeline
from clustersim.simulator.hardware.hashing import distinct
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.schedule import Schedule

EXPOSED = "exposed_"

COMPUTATION = ("compute", "recompute", "optimizer")
"""Kinds of computation."""

NO_LAYER = ""
"""Stands for the layer of ops without a layer."""


@dataclass(frozen=True)
class CriticalPath:
    """The spans on the critical path of *timeline*, in order of time, as arrays of one length.

    Each span is that of *op* (index in the program) of *step* on *rank* (a rank of the schedule). It counts from
    *begin* to *end* (s). *stretch* numbers, from 0, the sequences of spans on one stream of one rank.
    """

    timeline: Timeline
    rank: Integers
    step: Integers
    op: Integers
    begin: Floats
    end: Floats
    stretch: Integers

    @property
    def seconds(self) -> Floats:
        """Seconds of each span on the path."""
        return self.end - self.begin

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of spans: ``compute``, ``recompute``, ``optimizer``, names of axes, ``copy``, ``host``."""
        return kinds(self.timeline.schedule)

    @cached_property
    def kind(self) -> Integers:
        """The index in `kinds` of each span."""
        place = {name: number for number, name in enumerate(self.kinds)}
        return self._column(lambda op: place[kind_of(op)])

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers on the path, with `NO_LAYER` if a span has none."""
        return tuple(self._layers[1])

    @cached_property
    def layer(self) -> Integers:
        """The index in `layers` of the layer of each span."""
        return self._layers[0]

    @cached_property
    def _layers(self) -> tuple[Integers, list[str]]:
        found: dict[str, int] = {}
        return self._column(lambda op: found.setdefault(op.layer or NO_LAYER, len(found))), list(found)

    def _column(self, of: Callable[[Op], int]) -> Integers:
        """Return *of*(op) for the op of each span, as it stands in the template."""
        schedule = self.timeline.schedule
        program = schedule.program_numbers[self.rank]
        values = np.zeros(len(self.op), np.int64)
        for number in distinct(program).tolist():
            mine = program == number
            values[mine] = schedule.programs[number].column(of, np.int64)[self.op[mine]]
        return values

    def per_step(self) -> Floats:
        """Seconds of each span on the path within the measured window, per training step."""
        first, last = self.timeline.window
        within: Floats = np.clip(self.end, first, last) - np.clip(self.begin, first, last)
        return within / self.timeline.steps_measured

    def by_kind(self) -> dict[str, float]:
        """Return the seconds of the step time for each of `kinds`; they sum to the step time."""
        return self._summed(self.kind, self.kinds)

    def by_layer(self) -> dict[str, float]:
        """Return the seconds of the step time by layer; `NO_LAYER` for spans without a layer."""
        return self._summed(self.layer, self.layers)

    def by_rank(self) -> dict[int, float]:
        """Return the seconds of the step time by rank, in ascending order of the ranks on the path."""
        ranks, number = np.unique(self.rank, return_inverse=True)
        return dict(zip(ranks.tolist(), np.bincount(number, self.per_step(), len(ranks)).tolist(), strict=True))

    def _summed(self, number: Integers, names: Sequence[str]) -> dict[str, float]:
        return dict(zip(names, np.bincount(number, self.per_step(), len(names)).tolist(), strict=True))


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the critical path of a simulated *timeline*.

    Raises `SimulatorError` if the timeline was not simulated, or does not have the spans of all ranks.
    """
    causes = Causes(timeline)
    stretches: list[tuple[SpanPlace, SpanPlace]] = []
    last = causes.last()
    while last is not None:
        first = causes.first_of_run(last)
        stretches.append((first, last))
        last = causes.cause(first)
    return _path(timeline, causes, stretches[::-1])


def _path(timeline: Timeline, causes: Causes, stretches: Sequence[tuple[SpanPlace, SpanPlace]]) -> CriticalPath:
    """Return the path over *stretches*, each given by its first and last span."""
    pieces = [(causes.spans(first.rank), slice(first.span, last.span + 1)) for first, last in stretches]
    step, op = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(own, name)[which] for own, which in pieces)])
        for name in ("step", "op")
    )
    end = np.concatenate([np.zeros(0), *(own.end[which] for own, which in pieces)])
    lengths = np.array([last.span + 1 - first.span for first, last in stretches], np.int64)
    rank = np.repeat(np.array([first.rank for first, _ in stretches], np.int64), lengths)
    # rounding must not make a span end before its cause
    end = np.maximum.accumulate(end)
    begin = np.concatenate((np.zeros(1), end[:-1]))[: len(end)]
    return CriticalPath(timeline, rank, step, op, begin, end, np.repeat(np.arange(len(lengths)), lengths))


def kinds(schedule: Schedule) -> tuple[str, ...]:
    """Return the kinds of spans on a critical path of *schedule*: the parts of the breakdown without the bubble."""
    return tuple(key.removeprefix(EXPOSED) for key in keys(schedule) if key != "bubble")


def kind_of(op: Op) -> str:
    """Return the kind of *op*, one of `kinds`."""
    return part_of(op).removeprefix(EXPOSED)


def blamed(timelines: Iterable[Timeline]) -> dict[int, int]:
    """Return how many of *timelines* have each rank as the one with the most seconds on its critical path.

    The rank with most of them comes first; of equal ones the lower.
    """
    counts: Counter[int] = Counter()
    for timeline in timelines:
        seconds = critical_path(timeline).by_rank()
        if seconds:
            counts[max(seconds, key=lambda rank: (seconds[rank], -rank))] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


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


class Constraints(NamedTuple):
    """Arrays of one length: the span *before* could end *gap* (s) later without a delay of the span *after*."""

    before: Integers
    after: Integers
    gap: Floats


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
