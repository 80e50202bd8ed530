"""Braids of several ranks: who is tied waits for the last, whatever slows one of them down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.braid import Clock, Leg, Pattern, braided

LINE = Pattern(main=3, steady=(False, True, False), tied=(False, True, False), after=((), (), ()))
SIDE = Pattern(
    main=5,
    steady=(False, True, False, False, False, True),
    tied=(False, True, False, False, False, True),
    after=((), (), (), (), (5,), (2,)),
)
"""Work, a collective that blocks, work, work with a collective beside it, work that waits for that."""

SECONDS = st.floats(0.0, 4.0)


def test_at_a_tie_all_wait_for_the_last():
    # one rank works 1 s and 3 s, the other 2 s and 1 s; between them they exchange for 1 s
    times = braided(LINE, [[1.0, 1.0, 3.0], [2.0, 1.0, 1.0]], (), [0.0, 0.5])
    assert times.ready == [[0.0, 1.0, 3.5], [0.5, 2.5, 3.5]]
    assert times.begin == [[0.0, 2.5, 3.5], [0.5, 2.5, 3.5]]
    assert times.end == [[1.0, 3.5, 6.5], [2.5, 3.5, 4.5]]


def test_who_is_slowed_down_holds_up_the_others_and_collectives_take_their_time():
    # the second rank has half of its GPU from 1 s on: 1 s is done, the other takes 2 s
    clocks = [None, Clock([Leg(0.0, 1.0), Leg(1.0, 0.5)])]
    times = braided(LINE, [[1.0, 1.0, 3.0], [2.0, 1.0, 1.0]], (), [0.0, 0.0], clocks=clocks)
    assert times.begin[0][1] == times.begin[1][1] == 3.0
    assert [of[2] for of in times.end] == [7.0, 6.0]


def test_a_collective_beside_begins_when_all_have_forked_and_slows_each_of_them():
    # after 1 s they work 1 s and 2 s; the collective takes half of each GPU from 3 s to 5 s
    times = braided(SIDE, [[1.0, 0.0, 1.0, 4.0, 1.0, 2.0], [1.0, 0.0, 2.0, 2.0, 1.0, 2.0]], [0.5], [0.0, 0.0])
    assert times.begin[0][5] == times.begin[1][5] == 3.0
    # the first has done 1 s of 4 when it begins, 1 s more until 5 s; the second 1 s of 2 until then
    assert [of[3] for of in times.end] == [7.0, 6.0]
    assert [of[4] for of in times.end] == [8.0, 7.0]


@pytest.mark.parametrize(
    ("pattern", "knot"),
    [(LINE, 1), (SIDE, 1), (SIDE._replace(tied=(False, False, False, False, False, True)), None)],
)
def test_the_knot_is_the_first_tie_with_nothing_begun_beside(pattern, knot):
    assert pattern.knot == knot


@given(
    st.lists(st.lists(SECONDS, min_size=6, max_size=6), min_size=2, max_size=3),
    st.lists(SECONDS, min_size=3, max_size=3),
)
def test_arrays_of_times_are_reckoned_as_single_ones_and_from_the_knot_on_all_is_shifted(seconds, starts):
    starts, ranks = starts[: len(seconds)], range(len(seconds))
    alone = braided(SIDE, seconds, [0.3], starts)
    two = [[np.array([s, 2 * s]) for s in of] for of in seconds]
    both = braided(SIDE, two, [0.3], [np.array([t, 2 * t]) for t in starts], most=np.maximum, least=np.minimum)
    for one, other in zip(alone.end, both.end, strict=True):
        # twice the seconds, twice the time
        assert [float(t[0]) for t in other] == pytest.approx(one)
        assert [float(t[1]) for t in other] == pytest.approx([2 * t for t in one])
    later = braided(SIDE, seconds, [0.3], [0.0] * len(seconds), first=1)
    knot = alone.begin[0][1]
    assert [knot + later.end[rank][4] for rank in ranks] == pytest.approx([alone.end[rank][4] for rank in ranks])


@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.sampled_from([0.25, 0.5, 1.0])), min_size=1, max_size=5), SECONDS)
def test_a_clock_tells_its_own_time_and_back(parts, own):
    legs, now = [], 1.0
    for seconds, speed in parts:
        legs.append(Leg(now, speed))
        now += seconds
    clock = Clock(legs)
    assert clock.own(clock.time(1.0 + own)) == pytest.approx(1.0 + own)
    assert clock.time(1.0 + own) >= 1.0 + own - 1e-12
