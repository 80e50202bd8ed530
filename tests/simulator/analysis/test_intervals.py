import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.analysis.intervals import averages, partition

KINDS, END = 3, 12
interval = st.tuples(st.integers(-2, END + 2), st.integers(0, 6), st.integers(0, KINDS - 1))


@given(st.lists(interval, max_size=12))
def test_partition_counts_each_moment_once_for_the_lowest_active_kind(intervals: list[tuple[int, int, int]]) -> None:
    begin = np.array([b for b, _, _ in intervals], float)
    end = np.array([b + length for b, length, _ in intervals], float)
    kind = np.array([k for _, _, k in intervals], np.int64)
    seconds = [0] * (KINDS + 1)
    for moment in range(END):  # all ends are whole numbers, so a unit cell is of one kind throughout
        active = [k for b, length, k in intervals if b <= moment < b + length]
        seconds[min(active, default=KINDS)] += 1
    assert partition(begin, end, kind, KINDS, (0.0, float(END))).tolist() == seconds


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(0.5, 8), st.integers(0, 1)), max_size=8))
def test_averages_keep_the_integral_of_each_row_and_never_go_below_zero(
    uses: list[tuple[float, float, float, int]],
) -> None:
    begin, end, height, row = (np.array([use[i] for use in uses], float) for i in range(4))
    begin, end = np.minimum(begin, end), np.maximum(begin, end)
    edges = np.linspace(0.0, 10.0, 8)
    means = averages(begin, end, height, row.astype(np.int64), 2, edges)
    for one in range(2):
        mine = row == one
        assert np.isclose(means[one].sum() * (edges[1] - edges[0]), (height * (end - begin))[mine].sum(), atol=1e-9)
    assert means.min() > -1e-9


@given(st.integers(0, 5), st.integers(1, 5))
def test_averages_of_one_interval_are_its_overlap_with_each_bin(first: int, length: int) -> None:
    begin, end = first + 0.25, first + 0.25 + length
    edges = np.arange(13.0)
    means = averages(np.array([begin]), np.array([end]), np.array([2.0]), np.array([0]), 1, edges)[0]
    overlap = [2.0 * max(0.0, min(end, edge + 1) - max(begin, edge)) for edge in range(12)]
    assert np.allclose(means, overlap)
