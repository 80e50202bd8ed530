"""The chart of a critical path."""

from pathlib import Path

import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.figures import MOST_ROWS, critical_chart, draw
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.analysis.test_critical_path import data_parallel
from tests.simulator.conftest import pipeline


def gpipe(stages: int, micro_batches: int) -> Timeline:
    return simulate(pipeline(stages, micro_batches), uniform(gpus=stages, hosts=0, bandwidth=1e9, latency=0.0))


def bars(figure: Figure, panel: int) -> dict[str, tuple[float, float]]:
    """(begin, seconds) of each bar of a panel, by name."""
    axes = figure.axes[panel]
    names = [label.get_text() for label in axes.get_yticklabels()]
    corners = [bar.get_path().transformed(bar.get_patch_transform()).get_extents() for bar in axes.patches]
    return {name: (float(box.x0), float(box.width)) for name, box in zip(names, corners, strict=True)}


def test_bars_tell_kinds_and_ranks_and_sum_to_the_step() -> None:
    figure = critical_chart(gpipe(2, 2), None, None, None)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["over time", "by kind", "by layer", "by rank"]
    assert bars(figure, 1)["compute"] == pytest.approx((0.0, 0.9))
    assert bars(figure, 1)["pp"] == pytest.approx((0.9, 0.02))
    # the backward passes of rank 0 follow each other on its stream
    seconds = {name: s for name, (_, s) in bars(figure, 3).items()}
    assert seconds == pytest.approx({"rank 0 (stage 0)": 0.51, "rank 1 (stage 1)": 0.41})


def test_lines_lead_from_rank_to_rank() -> None:
    figure = critical_chart(gpipe(3, 2), None, None, None)
    (lines,) = (one for one in figure.axes[0].collections if isinstance(one, LineCollection) and one.get_zorder() > 0)
    moments = [segment[0][0] for segment in lines.get_segments()]
    assert moments == pytest.approx([0.1, 0.21, 0.62, 0.83])


def test_a_window_and_ranks_choose_what_is_shown() -> None:
    figure = critical_chart(gpipe(2, 2), [1], (0.3, 0.5), None)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 1 (stage 1)"]
    assert bars(figure, 1)["compute"] == pytest.approx((0.3, 0.2))


def test_ranks_that_are_not_on_it_are_refused() -> None:
    line = simulate(
        data_parallel(4), uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0), variation=Variation(stragglers={2: 2.0})
    )
    with pytest.raises(SimulatorError, match="none of the chosen ranks is on the critical path in this window"):
        critical_chart(line, [1], None, None)
    with pytest.raises(SimulatorError, match="there is no rank 4; ranks are 0 to 3"):
        critical_chart(line, [4], None, None)


def test_ranks_of_one_role_share_a_row_where_there_are_many() -> None:
    line = gpipe(MOST_ROWS + 1, 1)
    figure = critical_chart(line, None, None, None)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:2] == ["stage 0", "stage 1"]


@pytest.mark.parametrize("suffix", [pytest.param(".png", marks=pytest.mark.exhaustive), ".svg"])
def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        draw(gpipe(2, 2), "critical", tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
