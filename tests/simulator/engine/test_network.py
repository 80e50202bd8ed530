"""The fluid network: shared links, changing rates, predicted ends."""

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.network import LinkUses, Network
from simulator.plan import Flow


def flow(capacity, *links):
    return Flow(links, (1,) * len(links), links, (1.0,) * len(links), min(capacity[n] for n in links))


def run(capacity, transfers):
    """Start (time, flow, bytes) and return each one's end, and the network."""
    env = simpy.Environment()
    network = Network(env, capacity)
    ends = {}

    def one(number, begin, what, nbytes):
        yield env.timeout(begin)
        yield network.transfer(what, nbytes)
        ends[number] = env.now

    for number, (begin, what, nbytes) in enumerate(transfers):
        env.process(one(number, begin, what, nbytes))
    env.run()
    return [ends[n] for n in range(len(transfers))], network


def test_alone_it_takes_bytes_over_bandwidth():
    capacity = [10.0, 5.0]
    ends, _ = run(capacity, [(1.0, flow(capacity, 0, 1), 20.0)])
    assert ends == [5.0]


def test_two_share_a_link_and_the_second_speeds_up_when_the_first_is_gone():
    capacity = [10.0]
    both = flow(capacity, 0)
    ends, network = run(capacity, [(0.0, both, 10.0), (0.0, both, 30.0)])
    # 5 B/s each until 2 s; then 20 bytes are left at 10 B/s
    assert ends == [2.0, 4.0]
    assert [(s.begin, s.end) for s in LinkUses(network.stretches)] == [(0, 2), (0, 2), (2, 4)]


def test_a_late_comer_slows_who_is_there():
    capacity = [10.0]
    ends, _ = run(capacity, [(0.0, flow(capacity, 0), 20.0), (1.0, flow(capacity, 0), 5.0)])
    # 10 bytes flow until 1 s, then 5 B/s each: the second ends at 2 s, and 5 bytes are left at 10 B/s
    assert ends == [2.5, 2.0]


def test_strangers_do_not_meet():
    capacity = [10.0, 10.0]
    ends, _ = run(capacity, [(0.0, flow(capacity, 0), 10.0), (0.0, flow(capacity, 1), 20.0)])
    assert ends == [1.0, 2.0]


def announced(capacity, transfers):
    """The ends of transfers given as (time, how long before it is announced, flow, bytes)."""
    env = simpy.Environment()
    network = Network(env, capacity)
    ends = {}

    def one(number, begin, ahead, what, nbytes):
        yield env.timeout(begin - ahead)
        yield network.transfer(what, nbytes, latency=ahead)
        ends[number] = env.now

    for number, (begin, ahead, what, nbytes) in enumerate(transfers):
        env.process(one(number, begin, ahead, what, nbytes))
    env.run()
    return [ends[n] for n in range(len(transfers))]


def test_who_is_announced_takes_nothing_before_it_begins():
    capacity = [10.0]
    one = flow(capacity, 0)
    # announced at 0 for 2 s; the other comes at 1 s, has the link alone until 2 s, then they share it
    assert announced(capacity, [(2.0, 2.0, one, 10.0), (1.0, 0.0, one, 20.0)]) == [4.0, 4.0]
    # the other is gone when it begins
    assert announced(capacity, [(2.0, 2.0, one, 10.0), (1.0, 0.0, one, 5.0)]) == [3.0, 1.5]


def test_who_is_announced_and_meets_nobody_is_one_event():
    env = simpy.Environment()
    network = Network(env, [10.0])
    network.transfer(flow([10.0], 0), 10.0, latency=0.5)
    assert env.peek() == 1.5
    env.step()
    assert env.peek() == float("inf")


@st.composite
def traffic(draw):
    capacity = draw(st.lists(st.floats(1, 100), min_size=1, max_size=4))
    routes = st.sets(st.integers(0, len(capacity) - 1), min_size=1)
    one = st.tuples(st.floats(0, 5), routes, st.floats(1, 1000))
    return capacity, draw(st.lists(one, min_size=1, max_size=8))


@settings(deadline=None)
@given(traffic())
def test_no_link_is_ever_above_capacity_and_all_bytes_arrive(case):
    capacity, wanted = case
    _, network = run(capacity, [(begin, flow(capacity, *links), nbytes) for begin, links, nbytes in wanted])
    uses = LinkUses(network.stretches)
    for moment in sorted({u.begin for u in uses}):
        now = [u for u in uses if u.begin <= moment < u.end]
        for n, c in enumerate(capacity):
            assert sum(u.links.get(n, 0.0) for u in now) <= c * (1 + 1e-6)
    for n in range(len(capacity)):
        expected = sum(nbytes for _, links, nbytes in wanted if n in links)
        assert sum((u.end - u.begin) * u.links.get(n, 0.0) for u in uses) == pytest.approx(expected, rel=1e-6)
        assert network.link_bytes().get(n, 0.0) == pytest.approx(expected)


@settings(deadline=None)
@given(traffic(), st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_announcing_changes_nothing(case, parts):
    capacity, wanted = case
    flows = [flow(capacity, *links) for _, links, _ in wanted]
    begins = [(part * begin, begin) for part, (begin, _, _) in zip(parts, wanted, strict=False)]
    plain, _ = run(capacity, [(b, f, w[2]) for (a, b), f, w in zip(begins, flows, wanted, strict=True)])
    told = announced(capacity, [(b, a, f, w[2]) for (a, b), f, w in zip(begins, flows, wanted, strict=True)])
    assert told == pytest.approx(plain, rel=1e-9)
