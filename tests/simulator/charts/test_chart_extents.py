"""What charts draw: names and entries of legends inside the canvas, capacity and reserved memory, sweeps."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from clustersim.simulator.analysis import memory
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.bars import breakdown_bars
from clustersim.simulator.charts.gantt import timeline_chart, variants_chart
from clustersim.simulator.charts.memory import PeakMemory, memory_chart, states_chart
from clustersim.simulator.charts.rank_groups import groups
from clustersim.simulator.charts.sweep import HeatMap, HeatMapCell, SweepPoint, SweepSeries, heat_map_chart, sweep_chart
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.ops import Compute
from tests.simulator.conftest import crossbar, data_parallel, pipeline, played


def inside(figure: Figure) -> bool:
    """Whether all texts lie on the canvas."""
    FigureCanvasAgg(figure).draw()
    texts = [text for axes in figure.axes for text in (*axes.get_yticklabels(), *axes.texts)]
    texts += [*figure.texts, *(text for one in figure.legends for text in one.get_texts())]
    edges = np.array([text.get_window_extent().extents for text in texts if text.get_text()])
    return bool((edges >= -1).all() and (edges[:, 2] <= figure.bbox.width + 1).all())


def test_a_legend_of_nine_long_entries_and_a_long_title_are_not_cut() -> None:
    parts = {f"exposed_axis{n}": 1.0 for n in range(7)} | {"compute": 1.0, "bubble": 1.0}
    figure = breakdown_bars({"one": parts, "two": parts}, "a title " * 40, "a note " * 60)
    assert len(figure.legends[0].get_texts()) == 9
    assert inside(figure)


def test_memory_that_does_not_fit_is_told_in_red(gpipe: Callable[[int, int], Timeline]) -> None:
    # 20 micro-batches of 1 GB on 40 GB
    line = gpipe(2, 20)
    fits = memory_chart(line, None, None, None)
    assert [axes.get_title(loc="right") for axes in fits.axes] == ["", ""]
    figure = memory_chart(line, None, None, None, lambda rank: 25e9)
    assert figure.axes[0].get_title(loc="right") == "DOES NOT FIT: needs 45 GB of 40 GB"
    assert "20 GB at" in figure.axes[0].get_title(loc="left")
    assert "and 25 GB reserved" in figure.axes[0].get_title(loc="left")
    tops = [np.asarray(patch.get_path().vertices)[:, 1].max() for patch in figure.axes[0].patches]
    assert max(tops) == memory.peak(line).peak.nbytes + 25e9
    legend = figure.axes[0].get_legend()
    assert legend is not None
    # categories that hold nothing have no entry
    assert [text.get_text() for text in legend.get_texts()] == ["reserved", "activations", "capacity"]


def test_bars_of_peak_memory_are_as_long_as_it() -> None:
    held = {
        "zero_0": PeakMemory({"parameters": 3e9, "optimizer": 12e9}, 10e9),
        "zero_3": PeakMemory({"parameters": 1e9}, 10e9),
    }
    figure = states_chart(held, None)
    (axes,) = figure.axes
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    ends = dict.fromkeys((bar.get_y() for bar in bars), 0.0)
    for bar in bars:
        ends[bar.get_y()] = max(ends[bar.get_y()], bar.get_x() + bar.get_width())
    assert list(ends.values()) == pytest.approx([15e9, 1e9])
    assert [text.get_text() for text in axes.texts] == ["15 GB  DOES NOT FIT", "1 GB"]
    assert inside(figure)
    with pytest.raises(SimulatorError, match="no op holds memory"):
        states_chart({"none": PeakMemory({})}, None)


def test_several_schedules_share_the_axis_of_the_longest(gpipe: Callable[[int, int], Timeline]) -> None:
    several = {"short": gpipe(3, 2), "long": gpipe(3, 6)}
    figure = variants_chart(several, "pipeline", None, None, "two")
    assert [axes.get_title(loc="left").partition(":")[0] for axes in figure.axes] == ["short", "long"]
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, several["long"].makespan)}
    assert len(figure.legends) == 1
    with pytest.raises(SimulatorError, match="9 timelines do not fit into one figure; at most 8 do"):
        variants_chart({f"{n}": several["short"] for n in range(9)}, "pipeline", None, None, "nine")


def test_streams_without_a_visible_op_have_no_row() -> None:
    long = pipeline(2, 2)
    ops = [[replace(op, kernels=(measured(1e6),)) if isinstance(op, Compute) else op for op in p.ops]
           for p in long.programs]  # fmt: skip
    # messages of milliseconds against 1e6 s
    programs = tuple(replace(p, ops=tuple(own)) for p, own in zip(long.programs, ops, strict=True))
    line = played(replace(long, programs=programs), crossbar(2))
    figure = timeline_chart(line, None, None, None)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "stage 0 (rank 0)  compute",
        "stage 1 (rank 1)  compute",
    ]
    assert "4 streams with only ops too short to see are left out" in figure.texts[1].get_text()


def test_ranks_are_joined_only_if_all_their_spans_are_near(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(4)
    assert [group.ranks.tolist() for group in groups(line, line.classes, 1e-6)] == [[0, 1, 2], [3]]
    near = played(data_parallel(4), crossbar(4), {3: 1.001})
    assert [group.ranks.tolist() for group in groups(near, near.classes, 1e-6)] == [[0, 1, 2], [3]]
    assert [group.ranks.tolist() for group in groups(near, near.classes, 1e-3)] == [[0, 1, 2, 3]]


def test_labels_of_a_sweep_do_not_overlap_and_stay_inside() -> None:
    names = [f"a long name of an algorithm {number}" for number in range(20)]
    points = {"": [SweepPoint(float(number), {"step time": 1.0}) for number in range(20)]}
    cells = {
        (row, column): HeatMapCell(1.0 + row, row != column, row + column == 0)
        for row in range(3)
        for column in range(20)
    }
    for figure in (
        sweep_chart(SweepSeries("algorithm", "", points, names), "sweep"),
        heat_map_chart(HeatMap("x", names, "y", ["1", "2", names[0]], cells, "step time", "time"), "sweep"),
    ):
        assert inside(figure)
        assert all(label.get_window_extent().y0 >= 0 for label in figure.axes[0].get_xticklabels())
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [label.get_window_extent(renderer) for label in figure.axes[0].get_xticklabels()]
        assert len(boxes) == 20
        assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))


def test_a_sweep_draws_each_point_once_and_a_panel_for_each_quantity() -> None:
    series = {
        name: [SweepPoint(2.0**n, {"step time": n + 1.0, "MFU": 0.5}) for n in range(6)] for name in ("ring", "tree")
    }
    figure = sweep_chart(SweepSeries("cluster.nodes", "", series), "sweep")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["step time", "MFU"]
    assert [len(np.asarray(line.get_xdata())) for axes in figure.axes for line in axes.lines] == [6] * 4
    assert figure.axes[0].get_xscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ring", "tree"]
    assert inside(figure)
    with pytest.raises(SimulatorError, match=r"cluster\.nodes has one value"):
        sweep_chart(SweepSeries("cluster.nodes", "", {"": [SweepPoint(1.0, {"step time": 1.0})]}), "sweep")
