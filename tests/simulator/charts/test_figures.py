import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from clustersim.simulator.analysis import memory, metrics
from clustersim.simulator.analysis.timeline import Columns, Timeline
from clustersim.simulator.charts import canvas, figures
from clustersim.simulator.charts.memory import memory_chart
from clustersim.simulator.charts.palette import PHASE_PAINTS, axis_paint
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.simulator.conftest import crossbar, data_parallel, played


@pytest.mark.parametrize("chart", figures.CHARTS)
def test_every_chart_draws_a_picture_of_its_size(
    gpipe: Callable[[int, int], Timeline], tmp_path: Path, chart: str
) -> None:
    figures.draw(gpipe(3, 4), chart, tmp_path / "chart.png", title="a title")
    picture = imread(tmp_path / "chart.png")
    assert picture.shape[1] == canvas.PIXELS
    assert picture[..., :3].std() > 0.05


@pytest.mark.parametrize("suffix", canvas.SUFFIXES)
def test_the_same_timeline_gives_the_same_bytes(ddp: Callable[[int], Timeline], tmp_path: Path, suffix: str) -> None:
    line = ddp(2)
    for name in ("a", "b"):
        figures.draw(line, "timeline", tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_svg_holds_the_words_of_the_chart(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    figures.draw(ddp(4), "timeline", tmp_path / "deep" / "t.svg", ranks=[1, 3], window=(0.0, 0.1), title="Four GPUs")
    text = (tmp_path / "deep" / "t.svg").read_text()
    for word in ("Four GPUs", "2 of 4 ranks", "rank 1  compute", "rank 3  compute", "time (ms)", "dp communication"):
        assert f">{word}<" in text
    assert "rank 0" not in text


def test_two_timelines_stand_one_above_the_other_on_one_axis(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    timelines = {"simulated": ddp(2), "measured": ddp(2)}
    figures.draw_beside(timelines, tmp_path / "beside.svg", title="Both worlds")
    text = (tmp_path / "beside.svg").read_text()
    assert all(text.count(word) == 1 for word in ("Both worlds", "simulated", "measured", "time (ms)", "F forward"))
    assert text.count("rank 1") == 2


def test_sixty_four_ranks_that_are_asked_for_are_all_named(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    figures.draw(ddp(64), "timeline", tmp_path / "t.svg", ranks=range(64))
    text = (tmp_path / "t.svg").read_text()
    assert all(f">rank {rank}<" in text for rank in range(64))


def test_of_many_unequal_ranks_thirty_two_are_drawn_and_the_picture_says_so(tmp_path: Path) -> None:
    unequal = played(data_parallel(40), crossbar(40), {rank: 1 + 0.05 * rank for rank in range(40)})
    for chart in ("timeline", "breakdown"):
        figures.draw(unequal, chart, tmp_path / "t.svg")
        text = (tmp_path / "t.svg").read_text()
        assert sum(f">rank {rank}<" in text for rank in range(40)) == 32
        assert "32 of 40 ranks, evenly spread; --ranks shows others" in text


def test_ranks_that_look_the_same_share_a_row_even_if_they_were_simulated_apart(
    ddp: Callable[[int], Timeline], tmp_path: Path
) -> None:
    # 39 ranks at full speed and a slow one, each with spans of its own
    for chart, row in (("timeline", "ranks 0-38 (39)  compute"), ("breakdown", "ranks 0-38 (39)")):
        figures.draw(ddp(40), chart, tmp_path / "t.svg")
        text = (tmp_path / "t.svg").read_text()
        assert f">{row}<" in text
        assert "40 ranks in 2 rows; the ranks of a row look the same at this scale" in text
        assert (">rank 39" in text) and (">rank 7" not in text)


def test_rows_of_a_pipeline_have_the_names_of_its_stages(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    figures.draw(gpipe(3, 4), "breakdown", tmp_path / "b.svg")
    text = (tmp_path / "b.svg").read_text()
    assert all(f">{name}<" in text for name in ("mean of all", "stages 0, 2 (2 ranks)", "stage 1 (rank 1)"))
    figures.draw(gpipe(3, 4), "timeline", tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    assert all(f">stage {stage} (rank {stage})  compute<" in text for stage in range(3))


def test_a_part_too_short_to_see_has_no_entry_in_the_legend_but_counts(tmp_path: Path) -> None:
    figures.draw_breakdowns({"one": {"compute": 1.0, "exposed_dp": 1e-6, "bubble": 0.5}}, tmp_path / "b.svg")
    text = (tmp_path / "b.svg").read_text()
    assert ">bubble (waiting)<" in text
    assert "exposed dp" not in text


def test_equal_ranks_are_one_row_with_their_number(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    line = ddp(25)
    folded = replace(line, columns={0: line.columns[0], 24: line.columns[24]}, representative=np.array([0] * 24 + [24]))
    figures.draw(folded, "timeline", tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    for word in ("ranks 0-23 (24)  compute", "rank 24  compute", "25 ranks: 2 classes of equal ranks"):
        assert f">{word}<" in text


def many_layers(ranks: int, layers: int) -> Timeline:
    """Layers of which each is a fraction of a pixel, one after the other, with a message after each."""
    layer = Compute(name="F", action=Action("F", 0, 0), kernels=(measured(3.0),))
    sum_ = Collective(name="sum", kind="all_reduce", over="dp", nbytes=1.0)
    ops = tuple(replace(op, name=f"{op.name} {i}") for i in range(layers) for op in (layer, sum_))
    rows = [(2 * i + j, 0, 4.0 * i + 3 * j, 4.0 * i + 3 * j, 4.0 * i + 3 + j) for i in range(layers) for j in range(2)]
    schedule = Schedule(Mesh.regular({"dp": ranks}), (Program("all", ops),), (0,) * ranks)
    return Timeline.unfolded(schedule, [Columns.of(rows)] * ranks)


def test_dense_rows_show_the_share_of_each_paint_in_every_column(tmp_path: Path) -> None:
    figures.draw(many_layers(1, 10_000), "timeline", tmp_path / "t.png")
    picture = np.asarray(imread(tmp_path / "t.png"))[:150, :, :3]
    fills = [to_rgb(paint.fill) for paint in (PHASE_PAINTS["F"], axis_paint("dp"))]
    counts = [np.isclose(picture, fill, atol=1 / 255).all(axis=2).sum(axis=0) for fill in fills]
    drawn = np.flatnonzero(counts[0])
    # three quarters of the height of every column, and no pattern along it
    share = counts[0][drawn] / (counts[0] + counts[1])[drawn]
    assert len(drawn) > 1000
    assert np.abs(share - 0.75).max() < 0.06


def test_vector_charts_of_dense_timelines_stay_small(tmp_path: Path) -> None:
    figures.draw(many_layers(32, 2_000), "timeline", tmp_path / "t.svg")
    figures.draw(many_layers(32, 2_000), "timeline", tmp_path / "t.pdf")
    assert (tmp_path / "t.svg").stat().st_size < 500_000
    assert (tmp_path / "t.pdf").stat().st_size < 500_000


def test_the_memory_chart_reaches_the_peak_that_it_states(tmp_path: Path) -> None:
    # a moment of 30 bytes, a hundredth of a pixel, among thousands of 10 to 20
    sizes = [30.0 if i == 1234 else 10.0 + i % 10 for i in range(20_000)]
    ops = tuple(
        Compute(name=f"{i}", kernels=(measured(1.0),), allocates={"activations": size}, frees={"activations": size})
        for i, size in enumerate(sizes)
    )
    rows = [(i, 0, float(i), float(i), i + (0.1 if size == 30.0 else 1.0)) for i, size in enumerate(sizes)]
    line = Timeline.unfolded(Schedule(Mesh(1, {}), (Program("all", ops),), (0,)), [Columns.of(rows)])
    figure = memory_chart(line, None, None, None)
    (axes,) = figure.axes
    assert (
        max(np.asarray(patch.get_path().vertices)[:, 1].max() for patch in axes.patches)
        == memory.peak(line).peak.nbytes
        == 30.0
    )
    figures.draw(line, "memory", tmp_path / "m.png")
    assert "rank 0, the fullest: 30 B" in axes.get_title(loc="left")


def test_breakdowns_are_labelled_with_their_values(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    slow = metrics.breakdown(ddp(4))
    figures.draw_breakdowns({"slow": slow, "fast": {"compute": 0.05}}, tmp_path / "b.svg")
    text = (tmp_path / "b.svg").read_text()
    for word in ("slow", "fast", f"{slow['compute'] * 1e3:.3g}", "50 ms", "exposed dp communication"):
        assert f">{word}<" in text
    assert "recomputing" not in text


def in_virtual_stages(count: int) -> Timeline:
    """One rank that runs one micro-batch through *count* stages of its own and back; the optimizer is free."""
    forward = [Action("F", stage, 0) for stage in range(count)]
    backward = [Action("B", action.stage, 0) for action in reversed(forward)]
    actions = (*forward, *backward, Action("O", 0))
    seconds = {"F": 1.0, "B": 2.0, "O": 0.0}
    ops = tuple(Compute(name=str(a), action=a, kernels=(measured(seconds[a.phase]),)) for a in actions)
    ends = accumulate(seconds[a.phase] for a in actions)
    rows = [(i, 0, end - seconds[a.phase], end - seconds[a.phase], end)
            for i, (a, end) in enumerate(zip(actions, ends, strict=True))]  # fmt: skip
    schedule = Schedule(Mesh.regular({"pp": 1}), (Program("rank", ops),), (0,))
    return Timeline.unfolded(schedule, [Columns.of(rows)], devices=["gpu 0"])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_virtual_stages_are_told_apart(tmp_path: Path, count: int) -> None:
    figures.draw(in_virtual_stages(count), "pipeline", tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    named = [number for number in range(1, 10) if f">virtual stage {number} of its rank<" in text]
    # one stage needs no telling apart, and those beyond the hatches look like the last
    assert named == {1: [], 2: [1, 2], 3: [1, 2, 3], 8: [1, 2, 3, 4, 5]}[count]
    assert (">virtual stage 6 and up of its rank<" in text) == (count == 8)
    # a pattern for each hatch on the fills of F, B and the legend
    assert text.count("<pattern ") == 3 * {1: 0, 2: 1, 3: 2, 8: 5}[count]


def test_what_takes_no_time_is_not_in_the_legend_of_a_pipeline(tmp_path: Path) -> None:
    figures.draw(in_virtual_stages(2), "pipeline", tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert ">F forward<" in text
    assert "optimizer" not in text


@pytest.mark.parametrize("micro_batches", [3, 20])
def test_the_capacity_is_a_line_or_told_where_it_is_far_above(
    gpipe: Callable[[int, int], Timeline], tmp_path: Path, micro_batches: int
) -> None:
    # a micro-batch keeps 1 GB of 40 GB: the peak is a thirteenth of the capacity, or half of it
    figures.draw(gpipe(2, micro_batches), "memory", tmp_path / "m.svg")
    text = (tmp_path / "m.svg").read_text()
    assert (">capacity<" in text) == (micro_batches == 20)
    assert ("capacity 40 GB, above the chart" in text) == (micro_batches == 3)


def test_what_cannot_be_drawn_is_told(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    line = ddp(2)
    with pytest.raises(SimulatorError, match='no chart "gantt"; there are: timeline, pipeline, memory'):
        figures.draw(line, "gantt", tmp_path / "a.png")
    with pytest.raises(SimulatorError, match=r"must end with one of \.png, \.svg, \.pdf"):
        figures.draw(line, "timeline", tmp_path / "a.jpg")
    with pytest.raises(SimulatorError, match="takes no time"):
        figures.draw(Timeline.unfolded(line.schedule, [Columns.of([])] * 2), "timeline", tmp_path / "a.png")
    with pytest.raises(SimulatorError, match="no results to compare"):
        figures.draw_breakdowns({}, tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulatorError, match=r"cannot write .*a\.png"):
        figures.draw(line, "timeline", tmp_path / "file" / "a.png")


@pytest.mark.exhaustive
def test_only_plot_loads_matplotlib_and_never_pyplot() -> None:
    program = (
        "import sys; from clustersim.simulator.analysis import memory, metrics\n"
        "from clustersim.simulator.charts import pipeline, text_report\n"
        "from clustersim.simulator.analysis import network_traffic as traffic\n"
        "from clustersim.simulator.traces import perfetto_and_chrome as trace\n"
        "assert 'matplotlib' not in sys.modules and 'perfetto' not in sys.modules\n"
        "from clustersim.simulator.charts import figures as plot\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
