"""The summary of a run: what ran, its numbers, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.report.parts import Cell, Chart, Code, Part, Section, Table, Text
from scenarios.results.collective_result import CollectiveResult
from scenarios.results.result import Result
from scenarios.results.step_numbers import StepNumbers
from scenarios.results.text import batch, heading
from scenarios.results.variants_result import numbers
from simulator.analysis.palette import part_paint, parts_in_order
from simulator.units import show


def summary_section(name: str, result: Result) -> Section:
    """Return what ran, the numbers looked at first, and the report that `run` prints."""
    parts: list[Part] = [Text(heading(result.scenario))]
    if isinstance(result, StepNumbers):
        parts += [Text(batch(result.scenario)), numbers_table({name: result})]
    if isinstance(result, CollectiveResult):
        parts += [_sizes(result), _bandwidth(result)]
    parts.append(Code(result.report()))
    return Section("summary", "Summary", parts)


def numbers_table(results: Mapping[str, StepNumbers]) -> Table:
    """Return the numbers of *results*, a column each."""
    return Table.of_text(["", *results], numbers(results))


def breakdown_section(breakdowns: Mapping[str, Mapping[str, float]]) -> Section:
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
    return Section("breakdown", "Breakdown", [chart, Table(["part", *names], rows)])


def _time(seconds: float, step: float) -> Cell:
    share = f" ({seconds / step:.1%})" if step else ""
    return Cell(f"{show(seconds, 'time')}{share}", seconds)


def _sizes(result: CollectiveResult) -> Table:
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
    return Table(["size", "time", "algbw", "busbw", "algorithm"], rows)


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
