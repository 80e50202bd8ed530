"""The files of a validation: the numbers, the measured spans, and both timelines in one chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from scenarios.validate.validation import Validation
from simulator.analysis import spans
from simulator.analysis.files import file_stems
from simulator.errors import ReplayError
from simulator.files import write_text
from simulator.replay.replay import BrokenReplayError
from simulator.units import show


def write(validation: Validation, folder: Path, variant_of: str = "") -> Iterator[Path]:
    """Write *validation* into *folder* and yield the paths. The files of a variant end with its name."""
    from simulator.analysis.plot import draw_beside

    name = validation.scenario.name
    ending, title = (f"_{file_stems([name])[name]}", f"{variant_of}: {name}") if variant_of else ("", name)
    path = folder / f"validation{ending}.json"
    write_text(path, json.dumps(validation.summary(), indent=2) + "\n")
    yield path
    path = folder / f"measured_spans{ending}.csv"
    spans.write(validation.measured, path)
    yield path
    path = folder / f"validation{ending}.png"
    times = ", ".join(f"{what} {show(line.step_time, 'time')}" for what, line in validation.timelines.items())
    draw_beside(validation.timelines, path, title=f"{title}: step {times}")
    yield path


def with_spans_kept(error: BrokenReplayError, folder: Path) -> ReplayError:
    """Write the spans of the finished repetitions of *error* into *folder*; return an error that names the files."""
    if not error.timelines:
        return error
    for number, timeline in enumerate(error.timelines):
        spans.write(timeline, folder / f"measured_spans_{number}.csv")
    count = len(error.timelines)
    what = "the warm-up" if count == 1 else f"the warm-up and {count - 1} repetitions"
    return ReplayError(f"{error}; {what} had been measured: {folder}/measured_spans_*.csv")
