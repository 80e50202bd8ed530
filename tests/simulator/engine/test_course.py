"""Courses: what a run of ops takes alone, and when others leave it less than all of the GPU."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.braid import Braid, Pattern
from simulator.engine.course import Line

SECONDS = st.lists(st.floats(0.0, 4.0), min_size=1, max_size=6)
TURNS = st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from([0.25, 0.5, 1.0])), max_size=5)


def braid(seconds, steady, shares, after):
    """A braid of one rank, with as many collectives beside as there are *shares*."""
    untied = (False,) * len(seconds)
    return Braid(Pattern(len(seconds) - len(shares), tuple(steady), untied, tuple(after)), seconds, shares)


def played(course, turns):
    """*course* from the time 10 s on at full speed, then for so many seconds at each of the speeds of *turns*."""
    play, now = course.play(lambda: None), 10.0
    play.turn(now, 1.0)
    for seconds, speed in turns:
        now += seconds
        if now < play.end():
            play.turn(now, speed)
    return play


def test_a_collective_beside_takes_its_share_and_is_awaited():
    # a (1 s), b (2 s), c (1 s) compute; behind a, 3 s of a collective that takes half of the GPU, for which c waits
    both = braid([1.0, 2.0, 1.0, 3.0], [False, False, False, True], [0.5], [(), (), (3,), (0,)])
    assert both.alone.begin.tolist() == [0.0, 1.0, 4.5, 1.0]
    assert both.alone.end.tolist() == [1.0, 4.5, 5.5, 4.0]
    assert both.total == 5.5


def test_others_slow_what_computes_and_not_what_communicates():
    both = braid([1.0, 2.0, 1.0, 3.0], [False, False, False, True], [0.5], [(), (), (3,), (0,)])
    # from 11 s on half of the GPU: b runs at a quarter until 14 s, does 0.75, and 1.25 more at half speed
    play = played(both, [(1.0, 0.5)])
    assert play.end() == pytest.approx(18.5)
    assert play.times().end.tolist() == pytest.approx([11.0, 16.5, 18.5, 14.0])


@given(SECONDS, TURNS)
def test_a_braid_of_one_line_is_that_line(seconds, turns):
    steady = [number % 3 == 1 for number in range(len(seconds))]
    line = Line(seconds, steady)
    both = braid([*seconds, 0.0], [*steady, True], [0.0], [()] * (len(seconds) + 1))
    one, other = played(line, turns), played(both, turns)
    assert one.end() == pytest.approx(other.end())
    assert np.allclose(one.times().end, other.times().end[:-1])


@given(SECONDS, TURNS)
def test_a_line_ends_when_its_last_op_does_and_does_all_its_work(seconds, turns):
    line = Line(seconds, [False] * len(seconds))
    play = played(line, turns)
    end, times = play.end(), play.times()
    assert times.end[-1] == pytest.approx(end)
    assert np.all(np.diff(times.end) >= -1e-12)
    assert end >= 10.0 + line.total - 1e-9
    assert np.all(times.end - times.begin >= np.array(seconds) - 1e-9)
