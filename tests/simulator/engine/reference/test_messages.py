"""Messages follow each other on a link: the sender is free when its bytes are sent, the receiver has them later."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Delay, Recv, Send
from clustersim.topologies.uniform_and_tree import tree, uniform
from tests.simulator.engine.reference.executing import GB, each, ends, run, setup, spans, work

LATENCY = 0.5


def messages(count, nbytes=GB / 10):
    """The sends of one rank and the receives of the other."""
    sends = [Send(name=f"send {i}", over="dp", peer=1, nbytes=nbytes, stream="to") for i in range(count)]
    receives = [Recv(name=f"recv {i}", over="dp", peer=0, nbytes=nbytes, stream="from") for i in range(count)]
    return sends, receives


def test_messages_of_a_stream_pay_latency_once():
    """LogGP without overhead: the i-th of messages of 0.1 s has been sent after 0.1 i, and arrives 0.5 s later."""
    found = ends(setup(each(*messages(4)), uniform(gpus=2, hosts=0, bandwidth=GB, latency=LATENCY)))
    for i in range(4):
        assert found[0, f"send {i}"] == pytest.approx(0.1 * (i + 1))
        assert found[1, f"recv {i}"] == pytest.approx(0.1 * (i + 1) + LATENCY)


def test_what_depends_on_a_message_waits_for_its_arrival():
    sends, receives = messages(2)
    receives += [work("first", 1.0, after=("recv 0",)), work("second", 1.0, after=("recv 1",))]
    found = ends(setup(each(sends, receives), uniform(gpus=2, hosts=0, bandwidth=GB, latency=LATENCY)))
    assert found[1, "first"] == pytest.approx(0.1 + LATENCY + 1.0)
    assert found[1, "second"] == pytest.approx(0.1 + LATENCY + 2.0)


def test_other_ops_of_the_stream_wait_for_the_arrival_of_all_receives():
    sends, receives = messages(2)
    receives.append(Delay(name="wait", seconds=1.0, stream="from"))
    found = spans(setup(each(sends, receives), uniform(gpus=2, hosts=0, bandwidth=GB, latency=LATENCY)))
    assert found[1, "recv 1", 0][2] == pytest.approx(0.2 + LATENCY)
    assert found[1, "wait", 0][1] == pytest.approx(0.2 + LATENCY)


def test_receives_of_a_stream_end_in_order():
    """The second message has the shorter way and is there first, but its receive ends with that of the first."""
    cluster = tree([2, 2], [GB, GB], [1.0, 0.1], hosts=0)
    far = [Send(name="far", over="dp", peer=0, nbytes=GB / 10)]
    near = [Send(name="near", over="dp", peer=0, nbytes=GB / 10)]
    receives = [
        Recv(name="from far", over="dp", peer=2, nbytes=GB / 10, stream="from"),
        Recv(name="from near", over="dp", peer=1, nbytes=GB / 10, stream="from"),
    ]
    found = ends(setup(each(receives, near, far, []), cluster))
    assert found[2, "far"] == pytest.approx(0.1)
    assert found[1, "near"] == pytest.approx(0.2)
    assert found[0, "from far"] == pytest.approx(0.1 + 2.2)
    assert found[0, "from near"] == pytest.approx(0.1 + 2.2)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_both_engines_agree_on_random_messages(data):
    """Messages between four ranks on ways of unequal latency, on one or several streams, buffered or not."""
    programs = [[] for _ in range(4)]
    one = st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from([0, 1e8, 3e8]), st.booleans())
    for number, (sender, distance, nbytes, buffered) in enumerate(data.draw(st.lists(one, min_size=1, max_size=8))):
        receiver = (sender + distance) % 4
        to, source, delays = (data.draw(st.sampled_from(["a", "b"])) for _ in range(3))
        common = {"over": "dp", "nbytes": nbytes}
        programs[sender].append(Send(name=f"send {number}", peer=receiver, stream=to, buffered=buffered, **common))
        programs[receiver].append(Recv(name=f"recv {number}", peer=sender, stream=source, **common))
        if data.draw(st.booleans()):
            programs[receiver].append(work(f"work {number}", 0.1, after=(f"recv {number}",)))
        if data.draw(st.booleans()):
            programs[receiver].append(Delay(name=f"delay {number}", seconds=0.2, stream=delays))
    latencies = data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.1]), min_size=2, max_size=2))
    schedule = each(*programs, steps=data.draw(st.integers(1, 2)))
    try:
        made = setup(schedule, tree([2, 2], [GB, GB], latencies, hosts=0))
    except ScheduleError:
        return  # the order of messages differs at the two ends
    run(made)
