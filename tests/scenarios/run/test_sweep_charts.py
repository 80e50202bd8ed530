"""Charts of sweeps: what is on the axes, one mark for the best, and what does not fit or failed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from clustersim.scenarios.run.sweep import Sweep
from clustersim.scenarios.run.sweep_report import Plot
from clustersim.scenarios.run.sweep_table import SweepAxis, SweepRow
from clustersim.simulator.charts.sweep import HeatMap, HeatMapCell, heat_map_chart
from clustersim.simulator.reading.errors import SimulatorError

TP, MICRO, BANDWIDTH = "parallelism.tp", "training.micro_batch_size", "cluster.bandwidth"


def swept(values: dict[str, list[Any]], rows: list[SweepRow]) -> Sweep:
    return Sweep("toy", tuple(SweepAxis(key, tuple(several)) for key, several in values.items()), tuple(rows))


def grid() -> Sweep:
    """Four runs: 8, 4 and 2 s of which the last does not fit, and one that failed."""

    def row(tp: int, micro: int, seconds: float, fits: bool = True) -> SweepRow:
        return SweepRow({TP: tp, MICRO: micro}, "", {"step_time_s": seconds, "mfu": 1 / seconds, "memory.fits": fits})

    rows = [row(1, 1, 8.0), row(1, 2, 4.0), row(2, 1, 2.0, fits=False), SweepRow({TP: 2, MICRO: 2}, error="no")]
    return swept({TP: [1, 2], MICRO: [1, 2]}, rows)


@pytest.fixture(name="drawn")
def _drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    monkeypatch.setattr("clustersim.simulator.charts.figures.save", lambda figure, path: figures.append(figure))
    return figures


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def points(line: Line2D) -> list[list[float]]:
    return np.asarray(line.get_xydata()).tolist()


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_two_keys_are_a_heat_map(drawn: list[Figure]) -> None:
    grid().plot("x.png")
    axes = drawn[0].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (TP, MICRO)
    assert sorted(texts(drawn[0])) == ["2 s", "4 s", "8 s", "failed"]
    assert legend(drawn[0]) == ["best", "does not fit in memory"]
    # the frame of the best: tp 1 and micro-batch 2, because the run of 2 s does not fit
    frames = [patch for patch in axes.patches if patch.get_linewidth() == 3]
    assert [frame.get_xy() for frame in frames] == [(-0.5, 0.5)]  # type: ignore[attr-defined]


def test_the_greatest_share_is_the_best(drawn: list[Figure]) -> None:
    grid().plot("x.png", TP, MICRO, "mfu")
    frames = [patch for patch in drawn[0].axes[0].patches if patch.get_linewidth() == 3]
    assert [frame.get_xy() for frame in frames] == [(-0.5, 0.5)]  # type: ignore[attr-defined]
    assert sorted(texts(drawn[0])) == ["12.5%", "25.0%", "50.0%", "failed"]


def test_one_key_is_a_line_for_each_value_of_the_other(drawn: list[Figure]) -> None:
    grid().plot("x.png", TP, "step_time_s")
    axes = drawn[0].axes[0]
    lines = {line.get_label(): line for line in axes.lines if len(points(line)) > 1}
    assert [points(line) for line in lines.values()] == [[[1.0, 8.0], [2.0, 2.0]]]
    assert legend(drawn[0]) == ["micro_batch_size 1", "micro_batch_size 2", "does not fit in memory", "best"]
    marks = [points(line) for line in axes.lines if line.get_markersize() == 14]
    assert marks == [[[1.0, 4.0]]]


def test_quantities_are_placed_by_their_value_and_words_in_their_order(drawn: list[Figure]) -> None:
    for values in (["1 GB/s", "500 MB/s"], ["ring", "auto"]):
        rows = [SweepRow({BANDWIDTH: value}, "", {"step_time_s": 1.0}) for value in values]
        swept({BANDWIDTH: values}, rows).plot("x.png")
    assert [place for place, _ in points(drawn[0].axes[0].lines[0])] == [5e8, 1e9]
    bars = drawn[-1].axes[0].patches
    assert [bar.get_extents().x0 for bar in bars] == sorted(bar.get_extents().x0 for bar in bars)
    assert list(drawn[-1].axes[0].get_xticks()) == [0.0, 1.0] and len(bars) == 2
    labels = [label.get_text() for label in drawn[-1].axes[0].get_xticklabels()]
    assert labels == ["ring", "auto"]


def test_cells_that_several_runs_share_have_the_best(drawn: list[Figure]) -> None:
    rows = [
        SweepRow({"a": a, "b": b, "c": c}, "", {"mfu": a + b / 10 + c / 100})
        for a in (0, 1)
        for b in (0, 1)
        for c in (0, 1)
    ]
    sweep = swept({"a": [0, 1], "b": [0, 1], "c": [0, 1]}, rows)
    sweep.plot("x.png", "a", "b", "mfu")
    assert sorted(texts(drawn[0])) == ["1.0%", "101.0%", "11.0%", "111.0%"]
    assert drawn[0].texts[1].get_text() == "each cell is the best of 2 runs"
    with pytest.raises(SimulatorError, match="a sweep over 3 keys has no chart of its own; name x, y and hue"):
        sweep.plot("x.png")


@pytest.mark.parametrize(
    ("x", "y", "hue", "message"),
    [
        ("tp", "step_time_s", "", 'the sweep has no column "tp"; did you mean "parallelism.tp"?'),
        (TP, "step_time", "", 'the sweep has no column "step_time"; did you mean "step_time_s"?'),
        (TP, "mfu", "xyz", 'the sweep has no column "xyz"; there are parallelism.tp, training.micro_batch_size, '),
        (TP, "memory.fits", "", 'nothing to draw: no run has a number "memory.fits"'),
    ],
)
def test_columns_that_are_not_there(x: str, y: str, hue: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SimulatorError) as refused:
        grid().plot(tmp_path / "x.png", x, y, hue)
    assert str(refused.value).startswith(message)
    assert not list(tmp_path.iterdir())


def test_a_plot_is_named_by_two_or_three_columns() -> None:
    assert Plot.of_text("a:b") == Plot("a", "b")
    assert Plot.of_text("a: b :c") == Plot("a", "b", "c")


def test_more_cells_than_can_be_told_apart_are_refused() -> None:
    cells = HeatMap("x", [str(n) for n in range(61)], "y", ["0"], {(0, 0): HeatMapCell(1.0)}, "mfu", "share")
    with pytest.raises(SimulatorError, match="61 values of x do not fit into a heat map; at most 60 do"):
        heat_map_chart(cells, "")
