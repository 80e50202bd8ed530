"""The page: sections of runs, plans and sweeps in one HTML file, with its scripts, style and data inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scenarios.report.accuracy import accuracy_section
from scenarios.report.comparison import comparison_section
from scenarios.report.encoding import encoded
from scenarios.report.found import Given, plan_section, sweep_section
from scenarios.report.links import links_section
from scenarios.report.memory import memory_section
from scenarios.report.operators import operators_section
from scenarios.report.parts import Chart, Code, Gantt, Section
from scenarios.report.pipeline import pipeline_section
from scenarios.report.summary import breakdown_section, summary_section
from scenarios.report.timeline import timeline_section
from scenarios.results.result import Result
from scenarios.results.step_numbers import StepNumbers
from simulator.document.yaml_text import yaml_text
from simulator.errors import SimulatorError
from simulator.files import write_text
from simulator.lookup import version

MOST_SPANS = 300_000
"""Spans of all charts of a page at most: some 12 MB."""


@dataclass(frozen=True)
class Chapter:
    """The *sections* of one run, or those of all runs together; *key* names it in links."""

    key: str
    title: str
    sections: tuple[Section, ...]


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


def _of_run(name: str, result: Result, most: int) -> Iterator[Section]:
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
    yield Section("scenario", "Scenario", [Code(yaml_text(result.scenario.source.data))])
    yield accuracy_section(result)


def rendered(chapters: list[Chapter]) -> str:
    """Return the HTML of *chapters*."""
    check()
    from jinja2 import Environment
    from plotly.offline import get_plotlyjs

    data = {
        f"{chapter.key}-{section.key}-{number}": encoded(part)
        for chapter in chapters
        for section in chapter.sections
        for number, part in enumerate(section.parts)
        if isinstance(part, Chart | Gantt)
    }
    folder = Path(__file__).parent
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        (folder / "page.html").read_text(encoding="utf-8")
    )
    own = {name: (folder / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    # the end of a script element must not occur in its text
    library = get_plotlyjs().replace("</script", "<\\/script")
    title = ", ".join(chapter.title for chapter in chapters if chapter.key.startswith("run-")) or chapters[0].title
    return template.render(title=title, chapters=chapters, data=data, library=library, version=version(), **own)
