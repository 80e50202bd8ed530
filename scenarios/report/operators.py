"""Operators: the time of ops by layer and kind, the mean over the GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from scenarios.report.parts import Cell, Section, Table, Text
from simulator.analysis.palette import paint_of
from simulator.schedule import Op
from simulator.timeline import Timeline
from simulator.units import show

MOST_ROWS = 200
"""Rows at most, those of most time."""

Operator = tuple[str, str]
"""The layer, or the name of an op without one, and the kind of the op."""


def operators_section(timeline: Timeline) -> Section:
    """Return the table of the operators of *timeline*."""
    seconds, calls, gpus = _totals(timeline)
    most = sorted(seconds, key=lambda one: -seconds[one])[:MOST_ROWS]
    per = max(1, gpus * timeline.steps_run)
    rows = [
        [
            Cell(layer),
            Cell(kind),
            Cell(f"{calls[layer, kind] / per:,.4g}", calls[layer, kind]),
            Cell(show(seconds[layer, kind] / per, "time"), seconds[layer, kind]),
            _share(seconds[layer, kind] / per, timeline.step_time),
        ]
        for layer, kind in most
    ]
    left = f" The {len(seconds) - len(most)} shortest are left out." if len(seconds) > len(most) else ""
    told = "Mean over the GPUs, a step. Ops that run at the same time all count, so the shares may exceed 100 %."
    table = Table(["layer or op", "kind", "ops", "time", "share of the step"], rows)
    return Section("operators", "Operators", [Text(told + left), table])


def _share(seconds: float, step: float) -> Cell:
    return Cell(f"{seconds / step:.1%}", seconds) if step else Cell("-")


def _totals(timeline: Timeline) -> tuple[Mapping[Operator, float], Mapping[Operator, int], int]:
    """Return the seconds and the number of ops by operator of all GPUs with kept spans, and how many these are."""
    seconds: defaultdict[Operator, float] = defaultdict(float)
    calls, gpus = Counter[Operator](), 0
    for rank, ranks in timeline.classes.items():
        program, own = timeline.schedule.program(rank), timeline.of(rank)
        if program.on != "gpu":
            continue
        gpus += len(ranks)
        numbers: dict[Operator, int] = {}
        which = program.column(lambda op, n=numbers: n.setdefault(_operator(op), len(n)), np.int64)[own.op]  # type: ignore[misc]
        time = np.bincount(which, own.end - own.begin, len(numbers))
        count = np.bincount(which, minlength=len(numbers))
        for operator, number in numbers.items():
            seconds[operator] += float(time[number]) * len(ranks)
            calls[operator] += int(count[number]) * len(ranks)
    return seconds, calls, gpus


def _operator(op: Op) -> Operator:
    return op.layer or op.name, paint_of(op).label
