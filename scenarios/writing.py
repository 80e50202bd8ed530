"""What a run leaves behind: the result, the spans, the scenario as it was run, and the timeline as a chart."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scenarios.loading import named_files
from scenarios.result import Result
from simulator.document import Document, Position, replaced
from simulator.errors import SimulatorError
from simulator.timeline import Timeline


def write(result: Result, folder: Path) -> list[Path]:
    """Write *result* into *folder*; the paths written. Raises `SimulatorError` where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return list(_written(result, folder))
    except OSError as error:
        raise SimulatorError(f"cannot write {error.filename or folder}: {error.strerror or error}") from None


def _written(result: Result, folder: Path) -> Iterator[Path]:
    from simulator.analysis.plot import draw, draw_breakdowns

    path = folder / "result.json"
    path.write_text(json.dumps(result.summary(), indent=2) + "\n", encoding="utf-8")
    yield path
    path = folder / "scenario.yaml"
    source = _anywhere({**result.scenario.source.data, "name": result.scenario.name})
    path.write_text(yaml_text(source), encoding="utf-8")
    yield path
    timelines = result.timelines
    for name, timeline in timelines.items():
        ending = "" if len(timelines) == 1 else f"_{name}"
        path = folder / f"spans{ending}.csv"
        spans(timeline, path)
        yield path
        path = folder / f"timeline{ending}.png"
        draw(timeline, "timeline", path, title=name)
        yield path
    breakdowns = result.breakdowns
    if len(breakdowns) > 1:
        path = folder / "breakdown.png"
        draw_breakdowns(breakdowns, path, title=result.scenario.name)
        yield path


def spans(timeline: Timeline, path: Path) -> None:
    """One line for each span, in s: ready to begin it waited for partners, begin to end it worked.

    Equal ranks, which were simulated as one, are written as one: the first of them, and of how many *ranks* it tells.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rank", "ranks", "step", "op", "stream", "ready_s", "begin_s", "end_s"])
        for rank, ranks in timeline.classes.items():
            writer.writerows(
                (rank, len(ranks), span.step, span.op.name, span.op.stream, span.ready, span.begin, span.end)
                for span in timeline.spans(rank)
            )


def _anywhere(data: dict[str, Any]) -> dict[str, Any]:
    """*data* with the user's files named so that they are found from any folder."""
    for path, name in named_files(data):
        data = replaced(Document(data), path, str(Path(name).resolve()), Position()).data
    return data


def yaml_text(data: dict[str, Any]) -> str:
    """*data* as YAML, keys in their order."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()
