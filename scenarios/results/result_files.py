"""The files that a run writes: result, spans, the scenario as it was run, and charts.

Numbers that an earlier run wrote are compared with those of the same scenario simulated again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import isclose
from pathlib import Path
from typing import Any

from clustersim.scenarios.results.jobs_numbers import JobsNumbers
from clustersim.scenarios.results.jobs_result import QueueResult
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.titles import chart_title, place_title
from clustersim.scenarios.specification.loading import named_files
from clustersim.simulator.reading.document import Document, Position, replaced
from clustersim.simulator.reading.files import UnreadableFile, file_stems, read_text, write_text
from clustersim.simulator.reading.lookup import version
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.reading.yaml_and_json import parse_json, yaml_text
from clustersim.simulator.traces import span_table

LARGEST = 64 * 2**20
"""Bytes of a result at most."""

VERSION = "clustersim"
"""The key of clustersim's version in ``result.json``."""

SHOWN = 3
"""Numbers that a warning names."""

VARYING = ("simulation.wall_s", "simulation.engine")
"""Ends of the keys of numbers that differ between runs of the same scenario."""


def recorded(result: Result) -> dict[str, Any]:
    """Return the content of ``result.json``: the summary of *result* and the version that made it."""
    return {**result.summary(), VERSION: version()}


def warnings(folder: Path, result: Result) -> list[str]:
    """Return what differs between the result in *folder* and *result*, simulated again; none if no run wrote there."""
    path = folder / "result.json"
    if not (folder / "scenario.yaml").is_file():
        return []
    try:
        before = parse_json(read_text(path, LARGEST))
    except UnreadableFile as error:
        return [] if error.missing else [f"{error}; the scenario was simulated again"]
    except Fault as fault:
        return [f"{path}: {fault.message}; the scenario was simulated again"]
    old, new = _flat(before), _flat(recorded(result))
    made_by, here = old.pop(VERSION, "an unknown version"), new.pop(VERSION)
    told = [] if made_by == here else [f"{path} was written by clustersim {made_by}; this is {here}"]
    changed = [f"{key} was {old[key]}, is {new[key]}" for key in new if key in old and not _equal(key, old, new)]
    if changed:
        more = f", and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        told.append(f"{path} has other numbers than its scenario.yaml gives now: {'; '.join(changed[:SHOWN])}{more}")
    return told


def _equal(key: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    before, now = old[key], new[key]
    if key.endswith(VARYING):
        return True
    if isinstance(before, int | float) and isinstance(now, int | float):
        return isclose(before, now, rel_tol=1e-9, abs_tol=1e-15)
    return bool(before == now)


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested *data* by dotted key."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    if items is None:
        return {prefix: data}
    return {
        key: value
        for name, inner in items
        for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }


MOST_SPANS = 20_000
"""Rows from which spans.csv is written only on request: a file of about 2 MB, still handy in a spreadsheet."""


def write(
    result: Result, folder: Path, ranks: Sequence[int] | None = None, finished: Callable[[], None] = lambda: None
) -> list[Path]:
    """Write *result* into *folder*, with a chart of *ranks*; return the paths. Raises `SimulatorError`.

    *finished* is called after each file.
    """
    paths = []
    for path in _written(result, folder, ranks):
        paths.append(path)
        finished()
    return paths


def count(result: Result) -> int:
    """Return how many files `write` writes at most."""
    queues = sum(isinstance(one, QueueResult) for one in result.runs.values())
    return 2 + 3 * queues + 2 * len(result.timelines) + len(result.repeats) + (len(result.breakdowns) > 1)


def _written(result: Result, folder: Path, ranks: Sequence[int] | None) -> Iterator[Path]:
    from clustersim.simulator.charts.figures import draw, draw_breakdowns, draw_repeats

    path = folder / "result.json"
    write_text(path, json.dumps(recorded(result), indent=2) + "\n")
    yield path
    path = folder / "scenario.yaml"
    source = anywhere({**result.scenario.source.data, "name": result.scenario.name})
    write_text(path, yaml_text(source))
    yield path
    yield from _of_queues(result, folder)
    timelines, stems = result.timelines, file_stems(result.timelines)
    for name, timeline in timelines.items():
        ending = "" if len(timelines) == 1 else f"_{stems[name]}"
        if span_table.count(timeline) < MOST_SPANS:
            path = folder / f"spans{ending}.csv"
            span_table.write(timeline, path)
            yield path
        path = folder / f"timeline{ending}.png"
        title = chart_title(result.runs[name], result.scenario.name)
        if isinstance(result.runs[name], JobsNumbers):
            result.runs[name].plot("timeline", path, ranks=ranks, title=title)
        else:
            draw(timeline, "timeline", path, ranks=ranks, title=title)
        yield path
    for name, times in result.repeats.items():
        path = folder / ("repeats.png" if len(timelines) == 1 else f"repeats_{stems[name]}.png")
        draw_repeats(times, path, title=place_title(result.runs[name], result.scenario.name))
        yield path
    breakdowns = result.breakdowns
    if len(breakdowns) > 1:
        path = folder / "breakdown.png"
        draw_breakdowns(breakdowns, path, title=chart_title(result))
        yield path


def _of_queues(result: Result, folder: Path) -> Iterator[Path]:
    """Write the table of jobs and the charts of each queue among the runs of *result*; yield the paths."""
    queues = {name: one for name, one in result.runs.items() if isinstance(one, QueueResult)}
    stems = file_stems(queues)
    for name, one in queues.items():
        ending = "" if len(queues) == 1 else f"_{stems[name]}"
        path = folder / f"jobs{ending}.csv"
        write_text(path, one.jobs_table())
        yield path
        for chart in ("timeline", "queue"):
            path = folder / f"{chart}{ending}.png"
            one.plot(chart, path, title=chart_title(one, result.scenario.name))
            yield path


def anywhere(data: dict[str, Any]) -> dict[str, Any]:
    """Return *data* with absolute paths of the user's files, so that they are found from any folder."""
    for path, name in named_files(data):
        data = replaced(Document(data), path, str(Path(name).resolve()), Position()).data
    return data


def leaves_out_spans(result: Result) -> bool:
    """Return whether `write` leaves out the spans of a timeline of *result* because there are too many."""
    return any(span_table.count(timeline) >= MOST_SPANS for timeline in result.timelines.values())
