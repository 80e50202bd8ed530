"""Moments that differ only by rounding become one; others stay apart, in their order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.analysis.intervals import ONE_INSTANT, snapped


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-3, 3)), min_size=1, max_size=40))
def test_moments_are_equal_after_if_they_were_equal_but_for_rounding(drawn: list[tuple[int, int]]) -> None:
    whole = np.array([moment for moment, _ in drawn], float)
    rounding = np.array([part for _, part in drawn]) * 1e-14
    result = snapped(whole + rounding, 20.0)
    assert ((result[:, None] == result) == (whole[:, None] == whole)).all()
    assert ((result[:, None] < result) == (whole[:, None] < whole)).all()
    assert np.abs(result - whole).max() < 1e-13


def test_what_is_farther_apart_than_an_instant_stays_apart() -> None:
    moments = np.array([1.0, 1.0 + 2 * ONE_INSTANT * 10, 3.0])
    assert snapped(moments, 10.0).tolist() == moments.tolist()
    assert len(snapped(np.zeros(0), 0.0)) == 0
    assert snapped(np.array([0.0, 0.0]), 0.0).tolist() == [0.0, 0.0]
