"""Operators: time, work and saved activations by operator; time of ops by layer and kind. Means over the GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from clustersim.scenarios.report.parts import Cell, PageSection, PageTable, Text
from clustersim.scenarios.results.operator_profile import PHASES, OperatorRow, bounds, profile
from clustersim.scenarios.results.result import Result
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.palette import paint_of
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Op

MOST_ROWS = 200
"""Rows at most, those of most time."""

Place = tuple[str, str]
"""The layer, or the name of an op without one, and the kind of the op."""


def operators_section(result: Result) -> PageSection:
    """Return the tables of the operators and of the ops of *result*, a single run."""
    return PageSection("operators", "Operators", [*_by_operator(result), *_by_layer(result.timeline)])


def _by_operator(result: Result) -> Iterator[Text | PageTable]:
    """Yield the table of operators, if the run trains a model whose kernels were priced."""
    timeline = result.timeline
    if result.scenario.model is None or timeline.cluster is None:
        return
    rows = profile(result.scenario, timeline)
    yield Text(
        f"{show(rows.seconds, 'time')} of computation in a step. Saved are the activations that one micro-batch keeps, "
        "if they are not recomputed."
    )
    phases = [name for name in PHASES if rows.whole().by_phase.get(name)]
    header = ["operator", *phases, "share", "FLOPs", "moved", "saved", "bound by"]
    yield PageTable(header, [_row(name, row, phases, rows.seconds) for name, row in rows.by_operator().items()])


def _row(name: str, row: OperatorRow, phases: Sequence[str], whole: float) -> list[Cell]:
    times = (row.by_phase.get(phase, 0.0) for phase in phases)
    return [
        Cell(name),
        *(Cell(show(seconds, "time") if seconds else "", seconds) for seconds in times),
        _share(row.seconds, whole),
        Cell(show(row.flops, "rate", 3).removesuffix("/s") if row.flops else "", row.flops),
        Cell(show(row.nbytes, "size", 3) if row.nbytes else "", row.nbytes),
        Cell(show(row.saved, "size", 3) if row.saved else "", row.saved),
        Cell(bounds(row)),
    ]


def _by_layer(timeline: Timeline) -> Iterator[Text | PageTable]:
    """Yield the table of ops by layer and kind, communication included."""
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
    yield Text(told + left)
    yield PageTable(["layer or op", "kind", "ops", "time", "share of the step"], rows)


def _share(seconds: float, step: float) -> Cell:
    return Cell(f"{seconds / step:.1%}", seconds) if step else Cell("-")


def _totals(timeline: Timeline) -> tuple[Mapping[Place, float], Mapping[Place, int], int]:
    """Return the seconds and the number of ops by operator of all GPUs with kept spans, and how many these are."""
    seconds: defaultdict[Place, float] = defaultdict(float)
    calls, gpus = Counter[Place](), 0
    for rank, ranks in timeline.classes.items():
        program, own = timeline.schedule.program(rank), timeline.of(rank)
        if program.on != "gpu":
            continue
        gpus += len(ranks)
        numbers: dict[Place, int] = {}
        which = program.column(lambda op, n=numbers: n.setdefault(_place(op), len(n)), np.int64)[own.op]  # type: ignore[misc]
        time = np.bincount(which, own.end - own.begin, len(numbers))
        count = np.bincount(which, minlength=len(numbers))
        for operator, number in numbers.items():
            seconds[operator] += float(time[number]) * len(ranks)
            calls[operator] += int(count[number]) * len(ranks)
    return seconds, calls, gpus


def _place(op: Op) -> Place:
    return op.layer or op.name, paint_of(op).label
