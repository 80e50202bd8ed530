import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from simulator.analysis import metrics, plot
from simulator.analysis.plot import canvas
from simulator.errors import SimulatorError
from simulator.timeline import Timeline


@pytest.mark.parametrize("chart", plot.CHARTS)
def test_every_chart_draws_a_picture_of_its_size(
    gpipe: Callable[[int, int], Timeline], tmp_path: Path, chart: str
) -> None:
    plot.draw(gpipe(3, 4), chart, tmp_path / "chart.png", title="a title")
    picture = imread(tmp_path / "chart.png")
    assert picture.shape[1] == canvas.PIXELS
    assert picture[..., :3].std() > 0.05


@pytest.mark.parametrize("suffix", canvas.SUFFIXES)
def test_the_same_timeline_gives_the_same_bytes(ddp: Callable[[int], Timeline], tmp_path: Path, suffix: str) -> None:
    line = ddp(2)
    for name in ("a", "b"):
        plot.draw(line, "timeline", tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_svg_holds_the_words_of_the_chart(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    plot.draw(ddp(4), "timeline", tmp_path / "deep" / "t.svg", ranks=[1, 3], window=(0.0, 0.1), title="Four GPUs")
    text = (tmp_path / "deep" / "t.svg").read_text()
    for word in ("Four GPUs (2 of 4 ranks)", "rank 1  compute", "rank 3  compute", "time (ms)", "dp communication"):
        assert f">{word}<" in text
    assert "rank 0" not in text


def test_sixty_four_ranks_are_all_named(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    plot.draw(ddp(64), "timeline", tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    assert all(f">rank {rank}<" in text for rank in range(64))


def test_breakdowns_are_labelled_with_their_values(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    slow = metrics.breakdown(ddp(4))
    plot.draw_breakdowns({"slow": slow, "fast": {"compute": 0.05}}, tmp_path / "b.svg")
    text = (tmp_path / "b.svg").read_text()
    for word in ("slow", "fast", f"{slow['compute'] * 1e3:.3g}", "50 ms", "exposed dp communication"):
        assert f">{word}<" in text
    assert "recomputing" not in text


def test_what_cannot_be_drawn_is_told(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    line = ddp(2)
    with pytest.raises(SimulatorError, match='no chart "gantt"; there are: timeline, pipeline, memory'):
        plot.draw(line, "gantt", tmp_path / "a.png")
    with pytest.raises(SimulatorError, match=r"must end with one of \.png, \.svg, \.pdf"):
        plot.draw(line, "timeline", tmp_path / "a.jpg")
    with pytest.raises(SimulatorError, match="takes no time"):
        plot.draw(replace(line, records=[[], []]), "timeline", tmp_path / "a.png")
    with pytest.raises(SimulatorError, match="no results to compare"):
        plot.draw_breakdowns({}, tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulatorError, match=r"cannot write .*a\.png"):
        plot.draw(line, "timeline", tmp_path / "file" / "a.png")


def test_only_plot_loads_matplotlib_and_never_pyplot() -> None:
    program = (
        "import sys; from simulator.analysis import memory, metrics, pipeline, report, trace, traffic\n"
        "assert 'matplotlib' not in sys.modules and 'perfetto' not in sys.modules\n"
        "from simulator.analysis import plot\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
