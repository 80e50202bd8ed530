"""The files that a run writes: the result, the spans, the scenario as it was run, and charts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scenarios.files.recorded import recorded
from scenarios.files.titles import chart_title, place_title
from scenarios.results.result import Result
from scenarios.specification.loading import named_files
from simulator.analysis import spans
from simulator.analysis.files import file_stems
from simulator.document import Document, Position, replaced
from simulator.document.yaml_text import yaml_text
from simulator.files import write_text

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
    return 2 + 2 * len(result.timelines) + len(result.repeats) + (len(result.breakdowns) > 1)


def _written(result: Result, folder: Path, ranks: Sequence[int] | None) -> Iterator[Path]:
    from simulator.analysis.plot import draw, draw_breakdowns, draw_repeats

    path = folder / "result.json"
    write_text(path, json.dumps(recorded(result), indent=2) + "\n")
    yield path
    path = folder / "scenario.yaml"
    source = anywhere({**result.scenario.source.data, "name": result.scenario.name})
    write_text(path, yaml_text(source))
    yield path
    timelines, stems = result.timelines, file_stems(result.timelines)
    for name, timeline in timelines.items():
        ending = "" if len(timelines) == 1 else f"_{stems[name]}"
        if spans.count(timeline) < MOST_SPANS:
            path = folder / f"spans{ending}.csv"
            spans.write(timeline, path)
            yield path
        path = folder / f"timeline{ending}.png"
        title = chart_title(result.runs[name], result.scenario.name)
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


def anywhere(data: dict[str, Any]) -> dict[str, Any]:
    """Return *data* with absolute paths of the user's files, so that they are found from any folder."""
    for path, name in named_files(data):
        data = replaced(Document(data), path, str(Path(name).resolve()), Position()).data
    return data


def leaves_out_spans(result: Result) -> bool:
    """Return whether `write` leaves out the spans of a timeline of *result* because there are too many."""
    return any(spans.count(timeline) >= MOST_SPANS for timeline in result.timelines.values())
