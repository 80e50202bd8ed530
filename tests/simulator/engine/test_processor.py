"""A processor shared: computations beside each other, and beside collectives that take a part of it."""

import pytest
import simpy

from simulator.engine.course import Line
from simulator.engine.processor import Processor


def ends(script):
    """Run *script*(environment, processor), a generator function, beside nothing else; returns the clock at the end."""
    env = simpy.Environment()
    found = env.process(script(env, Processor(env)))
    return env.run(found)


def test_alone_it_takes_its_time_and_tells_when_each_part_ended():
    course = Line([1.0, 2.0, 0.0], [False] * 3)

    def script(env, gpu):
        return (yield gpu.compute(course)).times().end.tolist()

    assert ends(script) == [1.0, 3.0, 3.0]


def test_two_take_twice_as_long_and_a_crowd_counts_as_many():
    one, other = Line([2.0], [False]), Line([4.0], [False])

    def script(env, gpu):
        first, second = gpu.compute(one), gpu.compute(other, crowd=3)
        return [(yield first).times().end.tolist(), (yield second).times().end.tolist()]

    # a quarter of the speed each, for the crowd is three: 2 s of work in 8 s; then a third, for 2 more
    assert ends(script) == [[8.0], [pytest.approx(14.0)]]


def test_a_collective_slows_what_computes_and_not_what_is_steady():
    course = Line([1.0, 1.0, 1.0], [False, True, False])

    def script(env, gpu):
        done = gpu.compute(course)
        yield env.timeout(0.5)
        gpu.reserve(0.5)
        yield env.timeout(2.5)
        gpu.release(0.5)
        return (yield done).times().end.tolist()

    # half a second of the first is left at half speed; the steady one takes its second; the last has half done at 3 s
    assert ends(script) == pytest.approx([1.5, 2.5, 3.75])
