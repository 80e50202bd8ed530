"""Merged spans keep the time that is worked, and cover what they stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios.report.parts import Lane
from clustersim.scenarios.report.timeline import merged, within

SPANS = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.floats(1e-6, 1.0), st.integers(0, 3)), min_size=1, max_size=60
)  # fmt: skip


def _lane(spans) -> Lane:
    """Return a lane of spans one after the other, each (gap, length, paint)."""
    gaps, lengths, paint = (np.array(column) for column in zip(*spans, strict=True))
    end = np.cumsum(gaps + lengths)
    begin = end - lengths
    ones = np.ones(len(spans), np.int64)
    return Lane("x", begin, begin, end, paint, np.arange(len(spans)), ones, end - begin)


@given(SPANS, st.floats(1e-6, 2.0))
def test_merged_spans_keep_counts_and_work(spans, shortest) -> None:
    lane = _lane(spans)
    one = merged(lane, shortest)
    assert one.count.sum() == len(spans)
    assert np.isclose(one.busy.sum(), lane.busy.sum())
    assert (one.begin[0], one.end[-1]) == (lane.begin[0], lane.end[-1])
    assert np.all(one.begin[1:] >= one.end[:-1] - 1e-9)
    assert np.all(one.busy <= one.end - one.begin + 1e-9)


@given(SPANS, st.floats(1e-6, 2.0))
def test_long_spans_stay(spans, shortest) -> None:
    lane = _lane(spans)
    long = lane.end - lane.begin >= shortest
    one = merged(lane, shortest)
    assert set(lane.begin[long].tolist()) <= set(one.begin.tolist())


@given(SPANS, st.integers(1, 60))
def test_no_more_spans_than_asked_for(spans, most) -> None:
    lane = _lane(spans)
    made, shortest = within([lane], most, (0.0, float(lane.end[-1])))
    assert len(made[0].begin) <= most or shortest > lane.end[-1]
    assert (shortest == 0.0) == (len(spans) <= most)


def test_paints_stay_apart_unless_ops_are_very_short() -> None:
    lane = _lane([(0.0, 1.0, 0)] * 4 + [(0.0, 1.0, 1)] * 4)
    one = merged(lane, 2.0)
    assert one.paint.tolist() == [0, 1]
    assert one.count.tolist() == [4, 4]
