"""`Result.plot` and `Sweep.plot` return the figures that the commands write."""

from pathlib import Path

import numpy as np
import pytest

from clustersim import Result, Scenario, SimulatorError
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.results.run_folder import CHARTS, ONLY_OF_JOBS, ONLY_OF_QUEUES

VARIED = {"variants": {"small": {"training.global_batch_size": 64}, "large": {"training.global_batch_size": 128}}}


@pytest.fixture(scope="module")
def hello() -> Result:
    return Scenario.load("hello").run()


@pytest.fixture(scope="module")
def variants() -> Result:
    return Scenario.load("hello", VARIED).run()


OF_OTHERS = ("repeats", "sweep", "steps", *ONLY_OF_JOBS, *ONLY_OF_QUEUES)
"""Charts that a single training step does not have."""


@pytest.mark.parametrize("chart", [chart for chart in CHARTS if chart not in OF_OTHERS])
def test_a_figure_has_the_title_that_the_caller_gives(hello: Result, chart: str) -> None:
    figure = hello.plot(chart, title="Four GPUs")
    titles = [text.get_text() for text in figure.texts] + [axes.get_title() for axes in figure.axes]
    assert any("Four GPUs" in title for title in titles)


@pytest.mark.parametrize("chart", ["timeline", "memory", "breakdown"])
def test_a_file_has_the_bytes_that_the_command_writes(hello: Result, chart: str, tmp_path: Path) -> None:
    hello.plot(chart, tmp_path / "mine.svg")
    assert run(["plot", "hello", chart, "-o", str(tmp_path / "command.svg")]) == 0
    assert (tmp_path / "mine.svg").read_bytes() == (tmp_path / "command.svg").read_bytes()


def test_ranks_and_window_select(hello: Result) -> None:
    (axes,) = hello.plot(ranks=[1], window=(0.01, 0.05)).axes
    assert axes.get_xlim() == (0.01, 0.05)
    assert {label.get_text().split()[0] for label in axes.get_yticklabels()} == {"rank"}


@pytest.mark.parametrize("chart", ["timeline", "breakdown", "states", "sweep"])
def test_variants_share_a_figure(variants: Result, chart: str) -> None:
    figure = variants.plot(chart)
    assert figure.axes
    assert len(figure.axes) >= (2 if chart == "timeline" else 1)


def test_variants_with_a_chart_each_are_named(variants: Result) -> None:
    with pytest.raises(SimulatorError, match=r'2 runs, each with a memory chart of its own.*runs\["small"\]'):
        variants.plot("memory")
    assert variants.runs["small"].plot("memory").axes


def test_repeats_are_a_histogram() -> None:
    shaken = Scenario.load("hello", {"simulation": {"repeats": 5, "jitter": 0.02}}).run()
    assert shaken.plot("repeats").axes[0].patches


def test_bad_charts_and_files_are_refused(hello: Result, tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match='there is no chart "gantt"; draw timeline, '):
        hello.plot("gantt")
    with pytest.raises(SimulatorError, match="there are no repeats to draw"):
        hello.plot("repeats")
    with pytest.raises(SimulatorError, match=r"must end with one of \.png, \.svg, \.pdf"):
        hello.plot("timeline", tmp_path / "a.jpg")
    collective = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 2, "bandwidth": "1 GB/s", "latency": "1 us"},
            "collective": {"kind": "all_reduce", "size": ["1 MB", "8 MB"]},
        }
    ).run()
    with pytest.raises(SimulatorError, match="measures a collective; it has no chart of memory"):
        collective.plot("memory")
    assert np.array_equal(collective.plot("sweep").axes[0].lines[0].get_xdata(), [1e6, 8e6])
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_a_figure_and_a_file(tmp_path: Path) -> None:
    swept = Scenario.load("hello").sweep({"training.global_batch_size": [64, 128]})
    assert swept.plot(tmp_path / "sweep.png").axes[0].get_xlabel() == "training.global_batch_size"
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
