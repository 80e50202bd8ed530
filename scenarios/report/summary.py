"""The summary of a run: what ran, its numbers, where the time went, and how far the numbers can be trusted; and
several runs side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.scenarios.build.description import notes
from clustersim.scenarios.report.parts import Cell, Chart, Code, PageSection, PageTable, Part, Text
from clustersim.scenarios.results.expectations import held
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.result_kinds import CollectiveResult, differences, numbers
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.results.titles import batch, engine_line, heading
from clustersim.simulator.charts.palette import part_paint, parts_in_order
from clustersim.simulator.reading.units import show


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
