"""Sleeping never ends early, and clocks are aligned to within half a round trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.replay.clock import now, offset, quickest, sleep_until

SECONDS = st.floats(0.0, 1.0)


def test_sleep_never_ends_early():
    for seconds in (0.0, 1e-5, 1e-3, 1e-2):
        moment = now() + seconds
        sleep_until(moment)
        assert now() >= moment


@given(st.floats(-100, 100), st.lists(st.tuples(SECONDS, SECONDS), min_size=1))
def test_the_offset_is_right_to_half_of_the_quickest_round_trip(ahead, trips):
    answers = [(10.0, 10.0 + there + ahead, 10.0 + there + back) for there, back in trips]
    best = min(there + back for there, back in trips)
    assert quickest(answers) == pytest.approx(ahead, abs=best / 2 + 1e-9)


def test_ranks_of_one_machine_share_a_clock():
    assert offset(3, 8) == 0.0
