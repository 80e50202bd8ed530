"""The page: sections of runs, plans and sweeps in one HTML file, with its scripts, style and data inside. Charts are
text there: compressed JSON, in which arrays of spans are base64 of their bytes.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from clustersim.scenarios.report.found import Given, plan_section, sweep_section
from clustersim.scenarios.report.links_and_memory import links_section, memory_section
from clustersim.scenarios.report.parts import Chart, Code, Gantt, Lane, PageSection
from clustersim.scenarios.report.summary import (
    accuracy_section,
    breakdown_section,
    comparison_section,
    operators_section,
    summary_section,
)
from clustersim.scenarios.report.timeline import pipeline_section, timeline_section
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.analysis.timeline import Integers
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import write_text
from clustersim.simulator.reading.lookup import version
from clustersim.simulator.reading.yaml_and_json import yaml_text

if TYPE_CHECKING:
    from jinja2 import Template

FOLDER = Path(__file__).parent


def encoded(part: Chart | Gantt) -> str:
    """Return *part* as base64 of gzip of JSON; the same part gives the same text.

    Texts are escaped as in HTML, since plotly reads some tags in them; templates of hover texts stay.
    """
    data = _escaped(_chart(part) if isinstance(part, Chart) else _gantt(part))
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def _escaped(data: Any, key: str = "") -> Any:
    if isinstance(data, dict):
        return {name: _escaped(value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [_escaped(value, key) for value in data]
    return escape(data, quote=False) if isinstance(data, str) and key != "hovertemplate" else data


def _chart(chart: Chart) -> dict[str, Any]:
    return {"traces": list(chart.traces), "layout": chart.layout}


def _gantt(gantt: Gantt) -> dict[str, Any]:
    used = np.unique(np.concatenate([lane.text for lane in gantt.lanes])) if gantt.lanes else np.zeros(0, np.int64)
    return {
        "lanes": [_lane(lane, np.searchsorted(used, lane.text)) for lane in gantt.lanes],
        "paints": [{"label": label, "fill": fill} for label, fill in gantt.paints],
        "texts": [gantt.texts[place] for place in used.tolist()],
        "window": list(gantt.window),
    }


def _lane(lane: Lane, text: Integers) -> dict[str, str]:
    """Return the arrays of *lane* as base64: times as 64-bit floats, others as 32-bit numbers, little-endian."""
    times = {"ready": lane.ready, "begin": lane.begin, "end": lane.end, "busy": lane.busy}
    numbers = {"paint": lane.paint, "text": text, "count": lane.count}
    return {
        "name": lane.name,
        **{name: _bytes(values, "<f8") for name, values in times.items()},
        **{name: _bytes(values, "<u4") for name, values in numbers.items()},
    }


def _bytes(values: npt.NDArray[Any], dtype: str) -> str:
    return b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")


MOST_SPANS = 300_000
"""Spans of all charts of a page at most: some 12 MB."""


@dataclass(frozen=True)
class Chapter:
    """The *sections* of one run, or those of all runs together; *key* names it in links."""

    key: str
    title: str
    sections: tuple[PageSection, ...]


def check() -> None:
    """Raise `SimulatorError` if a library that pages need is not installed."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise SimulatorError(
            f"a report needs {error.name}, which is not installed: pip install jinja2 plotly"
        ) from None


def write(results: Mapping[str, Result], given: Given, path: Path) -> None:
    """Write the page of *results*, with the plans and sweeps *given*, to *path*, whole or not at all."""
    write_text(path, rendered(list(chapters(results, given))))


def chapters(results: Mapping[str, Result], given: Given) -> Iterator[Chapter]:
    """Yield the chapters of a page: what the runs have in common, each of *results*, then plans and sweeps."""
    if len(results) > 1:
        yield Chapter("all", "All runs", (comparison_section(results),))
    for number, (name, result) in enumerate(results.items(), 1):
        yield Chapter(f"run-{number}", name, tuple(_of_run(name, result, MOST_SPANS // len(results))))
    tables = [plan_section(path, number) for number, path in enumerate(given.plans, 1)]
    tables += [sweep_section(path, number) for number, path in enumerate(given.sweeps, 1)]
    if tables:
        yield Chapter("searches", "Plans and sweeps", tuple(tables))


def _of_run(name: str, result: Result, most: int) -> Iterator[PageSection]:
    """Yield the sections of *result*, with at most *most* spans."""
    yield summary_section(name, result)
    if isinstance(result, StepNumbers):
        yield breakdown_section({name: result.breakdown})
    yield timeline_section(result.timeline, most // 2)
    if isinstance(result, StepNumbers):
        pipeline = pipeline_section(result, most // 2)
        if pipeline is not None:
            yield pipeline
        yield memory_section(result)
    yield links_section(result.timeline)
    if isinstance(result, StepNumbers):
        yield operators_section(result)
    yield PageSection("scenario", "Scenario", [Code(yaml_text(result.scenario.source.data))])
    yield accuracy_section(result)


def chart_data(chapters: Sequence[Chapter]) -> dict[str, str]:
    """Return the charts of *chapters*, encoded, by the keys that their HTML has."""
    return {
        f"{chapter.key}-{section.key}-{number}": encoded(part)
        for chapter in chapters
        for section in chapter.sections
        for number, part in enumerate(section.parts)
        if isinstance(part, Chart | Gantt)
    }


def rendered(chapters: list[Chapter]) -> str:
    """Return the HTML of *chapters*."""
    title = ", ".join(chapter.title for chapter in chapters if chapter.key.startswith("run-")) or chapters[0].title
    library = chart_library()
    return _template("page.html").render(
        title=title,
        chapters=chapters,
        data=chart_data(chapters),
        # the end of a script element must not occur in its text
        library=library.replace("</script", "<\\/script"),
        version=version(),
        css=own_file("page.css"),
        js=own_file("page.js"),
    )


def fragments(chapter: Chapter) -> dict[str, str]:
    """Return the HTML of each section of *chapter* by its key, without the data of the charts."""
    template = _template("section.html")
    return {section.key: template.render(chapter=chapter, section=section) for section in chapter.sections}


def chart_library() -> str:
    """Return the script of plotly. Raises `SimulatorError` if it is not installed."""
    check()
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script


def own_file(name: str) -> str:
    """Return the text of the file *name* of this folder, such as ``page.js``."""
    return (FOLDER / name).read_text(encoding="utf-8")


def _template(name: str) -> Template:
    from jinja2 import Environment, FileSystemLoader

    return Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(FOLDER)
    ).get_template(name)
