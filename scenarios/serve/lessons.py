"""Lessons: prepared states of the page, one for each figure of the lectures, with what to see and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.serve.changes import changed
from clustersim.scenarios.serve.plain_scenario import plain
from clustersim.simulator.reading.yaml_and_json import read

LESSONS = Path(__file__).with_name("lessons.yaml")


@dataclass(frozen=True)
class Lesson:
    """The *data* of a scenario, a *text* of two sentences, and the key whose widget is to *change*."""

    title: str
    text: str
    change: str
    data: Mapping[str, Any]


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons in order."""
    return tuple(_lesson(one) for one in read(LESSONS).data["lessons"])


def _lesson(given: Mapping[str, Any]) -> Lesson:
    scenario = Scenario.load(given["scenario"])
    data = plain(scenario.variants[given["variant"]] if "variant" in given else scenario)
    for key, text in given.get("set", {}).items():
        data = changed(data, key, str(text))
    return Lesson(given["title"], given["text"], given["change"], data)
