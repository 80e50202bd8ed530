"""The page shows what `run` gives; each lesson shows what its text says."""

import base64
import gzip
import json
import re

import pytest

from clustersim.scenarios.report.serve import COMPARED, WarmRuns, lessons
from clustersim.scenarios.report.widgets import plain
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from tests.samples import sample

pytest.importorskip("plotly", reason="the page needs plotly, which is not installed")
HELLO = plain(Scenario.load("hello"))


def _numbers(answer) -> dict[str, str]:
    assert answer["faults"] == []
    return {one["name"]: one["text"] for one in answer["headline"]}


def test_a_run_shows_the_numbers_of_run() -> None:
    answer = WarmRuns().run(HELLO, {"training.global_batch_size": "64"})
    step = Scenario.load("hello", {"training.global_batch_size": 64}).run().summary()["step_time_s"]
    assert _numbers(answer)["step time"] == f"{1e3 * step:.4g} ms"
    assert "global_batch_size: 64" in answer["yaml"]
    assert answer["values"]["training.global_batch_size"] == "64"


def test_every_chart_of_a_section_has_its_data() -> None:
    runs = WarmRuns()
    first = runs.run(plain(Scenario.load("lecture_3d_32gpus")), {})
    rest = runs.charts(first["run"])
    for answer in (first, rest):
        keys = {key for html in answer["sections"].values() for key in re.findall(r'data-key="([^"]+)"', html)}
        assert keys == set(answer["charts"])
        for text in answer["charts"].values():
            assert json.loads(gzip.decompress(base64.b64decode(text)))
    assert {"breakdown", "memory", "links"} == set(first["sections"])
    assert {"timeline", "pipeline", "report"} == set(rest["sections"])


def test_a_wrong_value_is_told_beside_its_widget_and_kept() -> None:
    answer = WarmRuns().run(HELLO, {"training.micro_batch_size": "7"})
    assert answer["run"] is None
    (fault,) = answer["faults"]
    assert fault["key"] == "training.global_batch_size"
    assert "32 is not a multiple of micro_batch_size 7" in fault["text"]
    assert answer["data"]["training"]["micro_batch_size"] == 7


def test_a_text_that_is_no_yaml_is_told_and_the_rest_is_taken() -> None:
    answer = WarmRuns().run(HELLO, {"training.micro_batch_size": "[1", "training.global_batch_size": "64"})
    assert [one["key"] for one in answer["faults"]] == ["training.micro_batch_size"]
    assert answer["data"]["training"]["global_batch_size"] == 64


def test_a_run_is_compared_with_the_last_three() -> None:
    runs = WarmRuns()
    for batch in (16, 32, 48, 64, 80):
        runs.run(HELLO, {"training.global_batch_size": str(batch)})
    html = runs.charts(5)["sections"]["comparison"]
    assert [f"run {number}" in html for number in (1, 2, 3, 4, 5)] == [False, True, True, True, True]
    assert len(runs.kept) == COMPARED + 1
    with pytest.raises(ScenarioError, match="run 1 is no longer kept"):
        runs.charts(1)


def test_a_plan_offers_settings_that_are_as_fast_as_it_says() -> None:
    runs = WarmRuns()
    data = lessons()[5].data
    found = runs.plan(data)
    assert "best by step_time" in found["report"]
    first = found["best"][0]
    assert _numbers(runs.run(data, first["set"]))["step time"] == first["label"]


def test_there_is_a_lesson_for_each_figure_of_two_sentences() -> None:
    assert len(lessons()) == 9
    for lesson in lessons():
        assert len(re.findall(r"[.=] ?[0-9]*[.](?= |$)|[a-z0-9)][.](?= [A-Z]|$)", lesson.text)) == 2, lesson.text


SLOW = "Parameter servers", "Tensor parallelism", "Three dimensions"
"""Lessons that take a second or more."""


@pytest.mark.parametrize(
    "lesson", sample(lessons(), heavy=[one for one in lessons() if one.title in SLOW]), ids=lambda one: one.title
)
def test_every_lesson_runs_and_shows_the_widget_to_change(lesson) -> None:
    runs = WarmRuns()
    answer = runs.run(lesson.data, {})
    assert answer["faults"] == []
    assert lesson.change not in answer["hidden"]
    assert lesson.change in answer["values"]
    assert runs.charts(answer["run"])["sections"]["timeline"]


TOLD = [
    ("Naive data parallelism", {"parallelism.data.method": "ddp"}, "step time", -1),
    ("Gradients beside the backward pass", {"parallelism.data.overlap": "true"}, "step time", -1),
    ("Parameter servers", {"parallelism.data.servers": "25"}, "step time", -1),
    ("Tensor parallelism", {"parallelism.tp": "16"}, "step time", 1),
    ("The bubble of a pipeline", {"training.global_batch_size": "20"}, "bubble", -1),
    ("Three dimensions", {"parallelism.pp": "2", "parallelism.dp": "4"}, "bubble", -1),
    ("The stages of ZeRO", {"parallelism.data.stage": "1"}, "memory", -1),
    ("Recomputation", {"training.recompute": "full"}, "memory", -1),
    ("Recomputation", {"training.recompute": "full"}, "step time", 1),
]


@pytest.mark.parametrize("told", sample(TOLD, heavy=[one for one in TOLD if one[0] in SLOW]), ids=lambda one: one[0])
def test_the_change_of_a_lesson_does_what_its_text_says(told) -> None:
    title, change, number, sign = told
    data = next(one.data for one in lessons() if one.title == title)
    runs = WarmRuns()
    before, after = _numbers(runs.run(data, {}))[number], _numbers(runs.run(data, change))[number]
    assert (_value(after) - _value(before)) * sign > 0


def _value(text: str) -> float:
    """Return the first number of *text*, in s if it is a time."""
    found = re.match(r"([\d.]+) ?(ms)?", text)
    assert found
    return float(found[1]) * (1e-3 if found[2] else 1.0)


def test_the_bubble_of_the_lesson_is_that_of_its_formula() -> None:
    data = next(one.data for one in lessons() if one.title == "The bubble of a pipeline")
    assert _numbers(WarmRuns().run(data, {}))["bubble"] == f"{3 / 8:.1%}, in theory {3 / 8:.1%}"
