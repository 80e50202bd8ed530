"""A page is one file that names nothing outside, has every section, and shows all text as text."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from plotly.graph_objects import Figure

from clustersim import scenarios
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.report import page
from clustersim.scenarios.report.found import Given
from clustersim.scenarios.report.page import encoded
from clustersim.scenarios.report.parts import Chart, Gantt, Text
from clustersim.scenarios.report.timeline import timeline_section
from clustersim.scenarios.scenario import Scenario

pytest.importorskip("plotly", reason="pages need plotly, which is not installed")

NOTHING = Given((), (), ())
LIBRARY = 6e6
"""Bytes of a page that are the library of charts, at most."""
FOLDER = Path(scenarios.__file__).parent
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class _Elements(HTMLParser):
    """The elements of a page with their attributes, and the text outside of scripts and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text.append(data)


def _page(*results, given=NOTHING) -> str:
    return page.rendered(list(page.chapters({f"{one.scenario.name} {n}": one for n, one in enumerate(results)}, given)))


def _data(text: str) -> dict:
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return {key: json.loads(gzip.decompress(base64.b64decode(one))) for key, one in json.loads(found[1]).items()}


@pytest.fixture(scope="module")
def pipeline() -> str:
    scenario = Scenario.load("gpt_6_7b_64a100")
    return _page(scenario.run(), Scenario.load("hello").run())


def test_a_page_names_nothing_outside(pipeline: str) -> None:
    elements = _Elements(pipeline).found
    named = [
        value for _, attributes in elements for name, value in attributes.items()
        if name in ("src", "href", "action", "data", "srcset", "poster")
    ]  # fmt: skip
    assert named
    assert all(value and value.startswith("#") for value in named)
    assert not {tag for tag, _ in elements} & {"link", "iframe", "object", "embed", "img", "base", "form"}
    policy = next(one["content"] for tag, one in elements if tag == "meta" and "http-equiv" in one)
    assert policy and policy.startswith("default-src 'none'")
    style = re.search(r"<style>(.*?)</style>", pipeline, re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]


def test_every_section_is_there_and_every_link_leads_to_one(pipeline: str) -> None:
    elements = _Elements(pipeline).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    sections = {attributes["id"] for tag, attributes in elements if tag == "section"}
    common = ("summary", "breakdown", "timeline", "memory", "links", "operators", "scenario", "accuracy")
    assert sections == {
        "all-comparison", "run-1-pipeline", *(f"run-{number}-{name}" for number in (1, 2) for name in common)
    }  # fmt: skip
    links = {str(attributes["href"])[1:] for tag, attributes in elements if tag == "a"}
    assert links == sections | {"all", "run-1", "run-2"}


def test_every_chart_has_data_and_all_data_a_chart(pipeline: str) -> None:
    keys = [attributes["data-key"] for _, attributes in _Elements(pipeline).found if "data-key" in attributes]
    assert sorted(map(str, keys)) == sorted(_data(pipeline))


def test_figures_are_figures_of_plotly(pipeline: str) -> None:
    figures = [one for one in _data(pipeline).values() if "traces" in one]
    assert figures
    for one in figures:
        assert Figure(data=one["traces"], layout=one["layout"]).data


def test_a_timeline_keeps_the_times_of_all_ops(pipeline: str) -> None:
    result = Scenario.load("gpt_6_7b_64a100").run()
    timeline = _data(pipeline)["run-1-timeline-1"]
    own = result.timeline.of(0)
    lanes = [lane for lane in timeline["lanes"] if lane["name"].startswith("stage 0 ")]
    ends = sorted(end for lane in lanes for end in _floats(lane["end"]))
    assert ends == sorted(own.end[own.end > own.begin].tolist())
    assert timeline["window"] == [0.0, result.timeline.makespan]


def _floats(text: str) -> list[float]:
    return np.frombuffer(base64.b64decode(text), "<f8").tolist()


@pytest.mark.exhaustive
def test_the_same_runs_give_the_same_page(pipeline: str) -> None:
    assert _page(Scenario.load("gpt_6_7b_64a100").run(), Scenario.load("hello").run()) == pipeline


def test_hostile_names_are_text(tmp_path: Path) -> None:
    source = {**Scenario.load("hello").source.data, "description": HOSTILE}
    text = _page(Scenario.model_validate(source).run())
    elements = _Elements(text)
    assert sum(tag == "script" for tag, _ in elements.found) == 3
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert HOSTILE in "".join(elements.text)
    assert HOSTILE not in text


def test_texts_of_charts_are_escaped() -> None:
    chart = Chart("", [{"name": HOSTILE, "hovertemplate": "%{y}<extra></extra>"}], {})
    data = json.loads(gzip.decompress(base64.b64decode(encoded(chart))))
    assert "<" not in data["traces"][0]["name"]
    assert data["traces"][0]["hovertemplate"] == "%{y}<extra></extra>"
    gantt = Gantt("", [], [(HOSTILE, "#fff")], [HOSTILE], (0.0, 1.0))
    assert "<" not in json.dumps(json.loads(gzip.decompress(base64.b64decode(encoded(gantt)))))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["allreduce_dgx_a100", "naive_vs_ddp", "zhores_vgg16_parameter_server_vs_ring"])
def test_other_kinds_of_runs_have_pages(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", name, "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert len(text) < LIBRARY + 2e6
    assert "page.html" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_page_of_1024_gpus_has_a_row_for_each_class_and_is_bounded(tmp_path: Path) -> None:
    assert run(["report", "gpt3_175b_1024a100", "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    timeline = next(one for key, one in _data(text).items() if key.endswith("timeline-1"))
    assert len(timeline["lanes"]) == 2 * 16
    assert sum(len(_floats(lane["begin"])) for lane in timeline["lanes"]) <= page.MOST_SPANS
    assert len(text) < LIBRARY + 40 * page.MOST_SPANS


def test_bad_input_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    (tmp_path / "ragged.csv").write_text("step_time_s,b\n1\n")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"step_time_s\n1\n" * 100)[:20])
    (tmp_path / "text.csv.gz").write_bytes(b"step_time_s")
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "plan.json").write_text('{"name": "x"}')
    page_file = tmp_path / "page.html"
    for given, told in {
        "nothing_here": "nothing_here",
        str(tmp_path / "empty"): "holds no run",
        str(tmp_path / "x.csv"): "x.csv:1: is no table of a sweep",
        str(tmp_path / "ragged.csv"): "ragged.csv:2: has 1 cells where the header has 2",
        str(tmp_path / "none.csv"): "none.csv: cannot be read",
        str(tmp_path / "cut.csv.gz"): "cut.csv.gz: is not a table of a sweep",
        str(tmp_path / "text.csv.gz"): "text.csv.gz: is not a table of a sweep",
        str(tmp_path / "plan"): "plan.json: is no answer",
    }.items():
        assert run(["report", given, "-o", str(page_file)]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "Traceback" not in error
        assert not page_file.exists()
    assert run(["report", "hello", "-o", str(tmp_path / "page.pdf")]) == 2
    assert ".html" in capsys.readouterr().err


def test_sweeps_and_plans_of_folders_are_sortable_tables(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(["run", "hello", "-o", str(folder)]) == 0
    over = "training.global_batch_size=32,64"
    assert run(["sweep", "hello", "--over", over, "-o", str(folder / "sweep.csv.gz")]) == 0
    best = {
        "set": {"parallelism.tp": 2, "parallelism.data": {"method": "ddp"}}, "estimate_s": 1.0, "step_time_s": 1.5,
        "mfu": 0.4, "memory": {"need_bytes": 2e9}, "bubble_fraction": 0.1, "exposed_s": 0.2, "why": "fast",
    }  # fmt: skip
    answer = {"name": "x", "candidates": 3, "simulated": 1, "objective": "step_time", "best": [best]}
    (folder / "plan.json").write_text(json.dumps(answer))
    assert run(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    elements = _Elements((tmp_path / "page.html").read_text())
    sections = {attributes.get("data-section") for _, attributes in elements.found}
    assert {"plan-1", "sweep-1", "timeline"} <= sections
    orders = [
        attributes["data-order"] for tag, attributes in elements.found if tag == "td" and "data-order" in attributes
    ]
    assert {"32.0", "64.0", "1.5", "0.4"} <= set(orders)


def test_a_page_names_no_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text((FOLDER / "hello.yaml").read_text())
    assert run(["report", "mine.yaml", "-o", "page.html"]) == 0
    assert str(tmp_path) not in (tmp_path / "page.html").read_text()


def test_a_run_whose_ranks_all_differ_has_no_note_above_its_timeline() -> None:
    data = {"method": "parameter_server", "overlap": True, "priority": True}
    result = Scenario.load("hello", {"parallelism.data": data, "training.global_batch_size": 4}).run()
    told = timeline_section(result.timeline, 1000).parts[0]
    assert isinstance(told, Text)
    assert told.text.startswith("Zoom by a drag")
