"""The critical path: the chain of causes from the span that ends last back to the start; and the ranks that have most
of its time.

Each span on it counts from the end of its cause to its own end; the sum is the makespan. A faster op that is not on the
path saves nothing; a faster op on the path saves at most its time on the path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clustersim.simulator.analysis.metrics import keys, part_of
from clustersim.simulator.analysis.span_causes import Causes, Place
from clustersim.simulator.analysis.timeline import Floats, Integers, Timeline
from clustersim.simulator.hardware.hashing import distinct
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


def kinds(schedule: Schedule) -> tuple[str, ...]:
    """Return the kinds of spans on a critical path of *schedule*: the parts of the breakdown without the bubble."""
    return tuple(key.removeprefix(EXPOSED) for key in keys(schedule) if key != "bubble")


def kind_of(op: Op) -> str:
    """Return the kind of *op*, one of `kinds`."""
    return part_of(op).removeprefix(EXPOSED)


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the critical path of a simulated *timeline*.

    Raises `SimulatorError` if the timeline was not simulated, or does not have the spans of all ranks.
    """
    causes = Causes(timeline)
    stretches: list[tuple[Place, Place]] = []
    last = causes.last()
    while last is not None:
        first = causes.first_of_run(last)
        stretches.append((first, last))
        last = causes.cause(first)
    return _path(timeline, causes, stretches[::-1])


def _path(timeline: Timeline, causes: Causes, stretches: Sequence[tuple[Place, Place]]) -> CriticalPath:
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
