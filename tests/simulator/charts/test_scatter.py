"""Charts of agreement: a point for each pair, a line for each series, and what they are told by."""

import pytest

from clustersim.simulator.charts.scatter import agreement_chart, draw_agreement, scaling_chart
from clustersim.simulator.reading.errors import SimulatorError

GROUPS = {f"group {number}": [(1.0, 1.1), (10.0 * number, 8.0 * number)] for number in range(1, 30)}


def test_every_pair_is_a_point_on_the_diagonal_and_in_its_row():
    diagonal, errors = agreement_chart(GROUPS, "all").axes
    points = [tuple(point) for path in diagonal.collections if path.get_offset_transform() == diagonal.transData
              for point in path.get_offsets()]  # fmt: skip
    assert sorted(points) == sorted(pair for pairs in GROUPS.values() for pair in pairs)
    rows = [path.get_offsets() for path in errors.collections]
    assert [row[1][0] for row in rows] == pytest.approx([-0.2] * 29)
    assert [label.get_text() for label in errors.get_yticklabels()] == list(GROUPS)


def test_no_two_of_many_groups_look_alike():
    _, errors = agreement_chart(GROUPS, "all").axes
    looks = [(tuple(path.get_facecolor()[0]), path.get_paths()[0].vertices.tobytes()) for path in errors.collections]
    assert len(set(looks)) == len(GROUPS)


def test_a_series_has_a_line_for_what_was_measured_and_one_for_what_is_predicted():
    (axes,) = scaling_chart({"a": [(8, 100.0, 90.0), (4, 110.0, 120.0)]}, "TFLOP/s", "scaling").axes
    measured, predicted = axes.lines
    assert (list(measured.get_xdata()), list(measured.get_ydata())) == ([4, 8], [110.0, 100.0])
    assert (list(predicted.get_ydata()), predicted.get_linestyle()) == ([120.0, 90.0], "--")


def test_nothing_to_compare_is_told(tmp_path):
    with pytest.raises(SimulatorError, match="there is nothing to compare"):
        draw_agreement({"none": []}, tmp_path / "a.png")
