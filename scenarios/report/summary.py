"""The summary of a run: what ran, its numbers, where the time went, also by operator, and how far the numbers can be
trusted; and several runs side by side. Times of operators are means over the GPUs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from clustersim.scenarios.build.description import notes
from clustersim.scenarios.report.parts import Cell, Chart, Code, PageSection, PageTable, Part, Text
from clustersim.scenarios.results.expectations import held
from clustersim.scenarios.results.operator_profile import PHASES, OperatorRow, bounds, profile
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.result_kinds import CollectiveResult, differences, numbers
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.results.titles import batch, engine_line, heading
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.palette import paint_of, part_paint, parts_in_order
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Op


def summary_section(name: str, result: Result) -> PageSection:
    """Return what ran, the numbers looked at first, and the report that `run` prints."""
    parts: list[Part] = [Text(heading(result.scenario))]
    if isinstance(result, StepNumbers):
        parts += [Text(batch(result.scenario)), numbers_table({name: result})]
    if isinstance(result, CollectiveResult):
        parts += [_sizes(result), _bandwidth(result)]
    parts.append(Code(result.report()))
    return PageSection("summary", "Summary", parts)


def numbers_table(results: Mapping[str, StepNumbers]) -> PageTable:
    """Return the numbers of *results*, a column each."""
    return PageTable.of_text(["", *results], numbers(results))


def breakdown_section(breakdowns: Mapping[str, Mapping[str, float]]) -> PageSection:
    """Return where the step time went, a bar for each of *breakdowns* (s by part)."""
    parts = parts_in_order(part for one in breakdowns.values() for part in one)
    seen = [part for part in parts if any(one.get(part) for one in breakdowns.values())]
    names = list(breakdowns)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part_paint(part).label,
            "y": names,
            "x": [breakdowns[name].get(part, 0.0) for name in names],
            "marker": {"color": part_paint(part).fill},
            "hovertemplate": "%{x:.4~s}s<extra>%{fullData.name}</extra>",
        }
        for part in seen
    ]
    axis = {"title": {"text": "time of a step, mean over the GPUs"}, "ticksuffix": "s", "tickformat": "~s"}
    layout = {"barmode": "stack", "xaxis": axis, "yaxis": {"autorange": "reversed", "automargin": True}}
    rows = [
        [Cell(part_paint(part).label), *(_time(one.get(part, 0.0), sum(one.values())) for one in breakdowns.values())]
        for part in seen
    ]
    chart = Chart("Where the step time went", traces, layout, height=170 + 40 * len(names))
    return PageSection("breakdown", "Breakdown", [chart, PageTable(["part", *names], rows)])


def _time(seconds: float, step: float) -> Cell:
    share = f" ({seconds / step:.1%})" if step else ""
    return Cell(f"{show(seconds, 'time')}{share}", seconds)


def _sizes(result: CollectiveResult) -> PageTable:
    rows = [
        [
            Cell(show(row["size_bytes"], "size", 3), row["size_bytes"]),
            Cell(show(row["time_s"], "time"), row["time_s"]),
            Cell(show(row["algbw"], "bandwidth"), row["algbw"]),
            Cell(show(row["busbw"], "bandwidth"), row["busbw"]),
            Cell(f"{row['algorithm']} {row['protocol']}".strip()),
        ]
        for row in result.rows()
    ]
    return PageTable(["size", "time", "algbw", "busbw", "algorithm"], rows)


def _bandwidth(result: CollectiveResult) -> Chart:
    rows = result.rows()
    sizes = [row["size_bytes"] for row in rows]
    traces = [
        {"type": "scatter", "mode": "lines+markers", "name": name, "x": sizes, "y": [row[name] for row in rows]}
        for name in ("algbw", "busbw")
    ]
    size = {"type": "log", "title": {"text": "size"}, "ticksuffix": "B", "tickformat": "~s"}
    rate = {"title": {"text": "bandwidth"}, "ticksuffix": "B/s", "tickformat": "~s", "rangemode": "tozero"}
    return Chart("Bandwidth by size", traces, {"xaxis": size, "yaxis": rate})


def comparison_section(results: Mapping[str, Result]) -> PageSection:
    """Return the comparison of *results*, at least two."""
    keys = differences(results)
    steps = {name: one for name, one in results.items() if isinstance(one, StepNumbers)}
    parts: list[Part] = [PageTable.of_text(["key", *results], keys)] if keys else [Text("All keys are equal.")]
    if steps:
        parts.append(numbers_table(steps))
        parts += breakdown_section({name: one.breakdown for name, one in steps.items()}).parts
    return PageSection("comparison", "Comparison", parts)


SIMULATED = (
    "These numbers are predictions of a discrete-event simulation, not measurements. Prices of kernels and messages "
    "are formulas with published or fitted parameters; contention, waiting and overlap follow from the events."
)


def accuracy_section(result: Result) -> PageSection:
    """Return the accuracy statement of *result*."""
    parts: list[Part] = [Text(SIMULATED)]
    if isinstance(result, StepNumbers):
        parts.append(Text(_interval(result)))
        parts += [Text(f"Not calibrated: {line}.") for line in result.outside]
    parts += [Text(f"Note: {note}.") for note in notes(result.scenario)]
    parts.append(Text(f"Simulated by {engine_line(result.timeline)}."))
    outcomes = held(result.scenario, result.summary())
    if outcomes:
        rows = [
            [
                Cell(one.key),
                Cell(f"{one.expected:.6g}", one.expected),
                Cell(f"{one.value:.6g}", one.value),
                Cell(f"{one.error:+.1%}", one.error),
                Cell("met" if one.met else "MISSED"),
                Cell(one.source),
            ]
            for one in outcomes
        ]
        parts.append(PageTable(["expectation", "expected", "simulated", "error", "", "source"], rows))
    return PageSection("accuracy", "Accuracy", parts)


def _interval(result: StepNumbers) -> str:
    if result.uncertainty.interval is None:
        return "No interval: durations are given in the scenario, or its software stack is a lower bound."
    low, high = (show(seconds, "time") for seconds in result.uncertainty.interval)
    step = show(result.timeline.step_time, "time")
    return f"Step time {step}: {low} to {high} {result.uncertainty.known} (published runs of the catalogue)."


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
