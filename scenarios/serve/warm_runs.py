"""Runs of one process that stays warm: each is validated, simulated and kept, so that the last ones are compared."""

from __future__ import annotations

import json
import pathlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from clustersim.scenarios.report import page
from clustersim.scenarios.report.links import links_section
from clustersim.scenarios.report.memory import memory_section
from clustersim.scenarios.report.parts import Code, PageSection
from clustersim.scenarios.report.summary import breakdown_section, comparison_section, summary_section
from clustersim.scenarios.report.timeline import pipeline_section, timeline_section
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.result import Result, check_finite
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.answer import PlanAnswer, answer
from clustersim.scenarios.search.planner import Planner
from clustersim.scenarios.serve.changes import changed, faults, value_text
from clustersim.scenarios.serve.widgets import not_applying, widgets
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.yaml_and_json import yaml_text
from clustersim.simulator.schedule.gc_paused import gc_paused

COMPARED = 3
"""Former runs that a new one is compared with."""

MOST_SPANS = 30_000
"""Spans of the charts of a run at most: more than a screen has pixels, and some 0.5 MB."""

MOST_PLANS = 3
"""Best candidates of a plan that the page offers."""


@dataclass
class WarmRuns:
    """Simulates scenarios one after the other, and keeps the last ones by number."""

    kept: deque[tuple[int, Result]] = field(default_factory=lambda: deque(maxlen=COMPARED + 1))
    count: int = 0
    _one_at_a_time: Lock = field(default_factory=Lock)

    def run(self, data: Mapping[str, Any], changes: Mapping[str, str]) -> dict[str, Any]:
        """Simulate *data* with *changes*, texts by key; return its state, and its numbers or the faults.

        The state has the data, the values of the widgets, the defaults of those without a value, those that do not
        apply, and the YAML.
        """
        made, wrong = _with_changes(data, changes)
        state: dict[str, Any] = {"data": made, "values": {one.key: value_text(made, one.key) for one in widgets()}}
        state |= {"yaml": yaml_text(made), "faults": wrong, "hidden": None, "defaults": None, "run": None}
        if wrong:
            return state
        with self._one_at_a_time, gc_paused():
            try:
                scenario = _scenario(made)
                state["hidden"] = sorted(not_applying(scenario.specification))
                whole = scenario.document.data
                state["defaults"] = {one.key: value_text(whole, one.key) or one.default for one in widgets()}
                result = scenario.run()
                check_finite(result.summary())
            except SimulatorError as error:
                return state | {"faults": faults(error, state["values"])}
            self.count += 1
            self.kept.append((self.count, result))
            return state | {"run": self.count, "headline": headline(result), **_shown(_first_sections(result))}

    def charts(self, number: int) -> dict[str, Any]:
        """Return the charts of the run *number* that take longer, and the comparison. Raises `ScenarioError`."""
        with self._one_at_a_time, gc_paused():
            result = dict(self.kept).get(number)
            if result is None:
                raise ScenarioError(f"run {number} is no longer kept; change a value to run it again")
            return _shown(self._later_sections(result))

    def _later_sections(self, result: Result) -> Iterator[PageSection]:
        yield timeline_section(result.timeline, MOST_SPANS // 2)
        if isinstance(result, StepNumbers) and (pipeline := pipeline_section(result, MOST_SPANS // 2)):
            yield pipeline
        if len(self.kept) > 1:
            yield comparison_section({f"run {number}": one for number, one in reversed(self.kept)})
        yield PageSection("report", "Report", [Code(result.report())])

    def plan(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a plan for *data*: its text, and what its best candidates change."""
        with self._one_at_a_time, gc_paused():
            found = answer(Planner(_scenario(data)))
        return {"report": found.report(), "best": list(_offers(found))}


def _with_changes(data: Mapping[str, Any], changes: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return *data* with those *changes* that can be read, and the faults of the others."""
    made, wrong = dict(data), []
    for key, text in changes.items():
        try:
            made = changed(made, key, text)
        except ScenarioError as error:
            wrong += [{"key": key, "text": str(error)}]
    return made, wrong


def _scenario(data: Mapping[str, Any]) -> Scenario:
    return Scenario.of_document(Document(dict(data)), pathlib.Path(), "page")


def _offers(found: PlanAnswer) -> Iterator[dict[str, Any]]:
    for one in found.best[:MOST_PLANS]:
        # JSON is YAML on one line
        settings = {key: json.dumps(value) for key, value in one.candidate.settings.items()}
        yield {"label": show(one.seconds, "time"), "set": settings}


def headline(result: Result) -> list[dict[str, Any]]:
    """Return the numbers looked at first: *name*, *text*, and *wrong* if the run would fail by it."""
    if not isinstance(result, StepNumbers):
        return [{"name": "result", "text": result.in_short(), "wrong": False}]
    summary = result.summary()
    form = efficiency.bubble(result.scenario)
    bubble = f"{summary['bubble_fraction']:.1%}" + (f", in theory {form.fraction:.1%}" if form else "")
    return [
        {"name": "GPUs", "text": f"{len(result.timeline.gpu_ranks):,}", "wrong": False},
        {"name": "step time", "text": show(result.timeline.step_time, "time"), "wrong": False},
        {"name": "MFU", "text": f"{summary['mfu']:.1%}", "wrong": False},
        {"name": "memory", "text": result.need.amount, "wrong": not result.fits},
        {"name": "bubble", "text": bubble, "wrong": False},
    ]


def _first_sections(result: Result) -> Iterator[PageSection]:
    """Yield the sections that are ready at once."""
    if isinstance(result, StepNumbers):
        yield breakdown_section({"this run": result.breakdown})
        yield memory_section(result)
    else:
        yield summary_section(result.scenario.name, result)
    yield links_section(result.timeline)


def _shown(sections: Iterator[PageSection]) -> dict[str, Any]:
    """Return the HTML of *sections* by key, and the data of their charts."""
    made = page.Chapter("run", "This run", tuple(sections))
    return {"sections": page.fragments(made), "charts": page.chart_data([made])}
