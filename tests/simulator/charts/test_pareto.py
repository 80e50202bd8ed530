"""The picture of memory against time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.charts import figures
from clustersim.simulator.charts.scatter import NAMED, ParetoPoint, frontier, pareto_chart

POINTS = st.lists(
    st.builds(ParetoPoint, st.just("one"), st.floats(0.1, 100), st.floats(1e8, 1e11), st.booleans()),
    min_size=1,
    max_size=40,
)


@given(POINTS)
def test_no_point_beats_one_of_the_frontier_and_every_other_is_beaten(points: list[ParetoPoint]) -> None:
    best = frontier(points)
    for one in points:
        beaten = [two for two in best if two.seconds <= one.seconds and two.nbytes <= one.nbytes]
        assert beaten, "each point is beaten by, or is, one of the frontier"
    for one in best:
        assert not [two for two in points if two.seconds < one.seconds and two.nbytes < one.nbytes]


def test_every_point_is_drawn_and_the_best_are_named(tmp_path: Path) -> None:
    points = [ParetoPoint(f"plan {n}", 1.0 + n / 4, 90e9 / (1 + n), n % 2 == 0) for n in range(16)]
    figure = pareto_chart(points, 80e9, "small")
    axes = figure.axes[0]
    drawn = sum(np.shape(collection.get_offsets())[0] for collection in axes.collections)
    assert drawn == 16
    assert len(axes.texts) <= NAMED
    assert "plan 15" in axes.get_xlabel()
    assert "plan 0" not in axes.get_xlabel(), "it needs more memory than there is"
    assert len(axes.get_xticks()) >= 3
    path = tmp_path / "plan.png"
    figures.draw_pareto(points, 80e9, path, title="small")
    assert path.stat().st_size > 10_000
