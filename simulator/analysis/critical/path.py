"""The critical path: the chain of causes from the span that ends last back to the start.

Each span on it counts from the end of its cause to its own end, so that together they last as long as the timeline.
Making what is not on the path faster saves nothing; making what is on it faster saves at most its time on the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.analysis.critical.causes import Causes, Place
from simulator.analysis.metrics import keys, part_of
from simulator.schedule import Op, Schedule
from simulator.timeline import Floats, Integers, Timeline

EXPOSED = "exposed_"

COMPUTATION = ("compute", "recompute", "optimizer")
"""Kinds of what kernels do."""

NO_LAYER = ""
"""In place of the layer of ops that belong to none."""


@dataclass(frozen=True)
class CriticalPath:
    """The spans on the critical path of *timeline*, in order of time, as arrays of one length.

    A span is that of *op* (index in the program) of *step* on *rank*, a rank of the schedule. It counts from *begin* to
    *end* (s). *stretch* numbers, from 0, what follows each other on one stream of one rank.
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
        """How long each span is on the path."""
        return self.end - self.begin

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """What spans can be: ``compute``, ``recompute``, ``optimizer``, the name of an axis, ``copy`` or ``host``."""
        return kinds(self.timeline.schedule)

    @cached_property
    def kind(self) -> Integers:
        """Of each span its place in `kinds`."""
        place = {name: number for number, name in enumerate(self.kinds)}
        return self._column(lambda op: place[kind_of(op)])

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers on the path, `NO_LAYER` among them where a span has none."""
        return tuple(self._layers[1])

    @cached_property
    def layer(self) -> Integers:
        """Of each span the place of its layer in `layers`."""
        return self._layers[0]

    @cached_property
    def _layers(self) -> tuple[Integers, list[str]]:
        found: dict[str, int] = {}
        return self._column(lambda op: found.setdefault(op.layer or NO_LAYER, len(found))), list(found)

    def _column(self, of: Callable[[Op], int]) -> Integers:
        """Of each span *of* its op, as the template writes it."""
        schedule = self.timeline.schedule
        program = np.array(schedule.program_of)[self.rank]
        values = np.zeros(len(self.op), np.int64)
        for number in np.unique(program).tolist():
            mine = program == number
            values[mine] = schedule.programs[number].column(of, np.int64)[self.op[mine]]
        return values

    def per_step(self) -> Floats:
        """How long each span is on the path within the window that is measured, per training step, s."""
        first, last = self.timeline.window
        within: Floats = np.clip(self.end, first, last) - np.clip(self.begin, first, last)
        return within / self.timeline.steps_measured

    def by_kind(self) -> dict[str, float]:
        """Seconds of the step time by kind, all of `kinds`; they sum to the step time."""
        return self._summed(self.kind, self.kinds)

    def by_layer(self) -> dict[str, float]:
        """Seconds of the step time by layer, `NO_LAYER` for what belongs to none."""
        return self._summed(self.layer, self.layers)

    def by_rank(self) -> dict[int, float]:
        """Seconds of the step time by rank, the ranks on the path in ascending order."""
        ranks, number = np.unique(self.rank, return_inverse=True)
        return dict(zip(ranks.tolist(), np.bincount(number, self.per_step(), len(ranks)).tolist(), strict=True))

    def _summed(self, number: Integers, names: Sequence[str]) -> dict[str, float]:
        return dict(zip(names, np.bincount(number, self.per_step(), len(names)).tolist(), strict=True))


def kinds(schedule: Schedule) -> tuple[str, ...]:
    """What a span on the critical path of *schedule* can be: the parts of the breakdown, but for the bubble."""
    return tuple(key.removeprefix(EXPOSED) for key in keys(schedule) if key != "bubble")


def kind_of(op: Op) -> str:
    """The one of `kinds` that *op* is."""
    return part_of(op).removeprefix(EXPOSED)


def critical_path(timeline: Timeline) -> CriticalPath:
    """The critical path of a simulated *timeline*.

    Raises `SimulatorError` where the timeline was not simulated, or does not hold the spans of all ranks.
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
    """The path over *stretches*, each given by its first and its last span."""
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
