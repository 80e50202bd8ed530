"""Communications: closed forms, shared links, buffered sends, capacities that change, flows from outside."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.timeline import NO_COMMUNICATION
from clustersim.simulator.engine.compiled import event_loop, execution
from clustersim.simulator.engine.reference.network import max_min
from clustersim.simulator.engine.setup import Background, CapacityChange, Setup, Unfolded
from clustersim.simulator.network.plan import Flow, Phase, TransferPlan
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Copy, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.engine.reference.executing import GB, crossbar, each, ends, port, run, setup, spans, work


def send(peer, gigabytes, name="send", **fields):
    return Send(name=name, over="dp", peer=peer, nbytes=gigabytes * GB, **fields)


def recv(peer, gigabytes, name="recv", **fields):
    return Recv(name=name, over="dp", peer=peer, nbytes=gigabytes * GB, **fields)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 16),
    st.floats(1.0, 1e10),
    st.floats(0.0, 1e-3),
    st.sampled_from(["flow", "chunk", "alpha_beta"]),
    st.booleans(),
)
def test_ring_all_reduce(p, nbytes, alpha, fidelity, fold):
    op = Collective(name="sum", kind="all_reduce", over="dp", nbytes=nbytes)
    schedule = Schedule(Mesh.regular({"dp": p}), (Program("all", (op,)),), (0,) * p)
    found = ends(setup(schedule, uniform(p, GB, alpha, hosts=0), fidelity=fidelity, fold=fold))
    expected = 2 * (p - 1) * alpha + 2 * (p - 1) / p * nbytes / GB
    assert list(found.values()) == pytest.approx([expected] * p, rel=1e-9)


def test_two_messages_share_a_port_until_the_first_ends():
    schedule = each([send(1, 1), send(2, 3, "more", stream="other")], [recv(0, 1)], [recv(0, 3)])
    found = spans(setup(schedule))
    # half a GB/s each until 2 s, then 2 GB are left at 1 GB/s
    assert found[1, "recv", 0] == found[0, "send", 0] == [0.0, 0.0, 2.0]
    assert found[2, "recv", 0] == found[0, "more", 0] == [0.0, 0.0, 4.0]


def test_a_stream_has_so_many_receives_on_their_way_as_its_field_counts():
    most = event_loop.MOST_POSTED
    count = most + 10
    receives = [recv(1, 1e-9, f"r{place}") for place in range(count)]
    schedule = each(receives, [send(0, 1e-9, f"s{place}") for place in range(count)])
    columns = execution.run(setup(schedule, uniform(2, GB, 1.0, hosts=0))).columns
    sent = 1e-9 * np.arange(1, most + 1)
    assert columns[0].end[:most] == pytest.approx(1.0 + sent, rel=1e-12)
    assert columns[1].end[:most] == pytest.approx(sent)
    # those behind wait for one that has ended
    assert np.all(columns[0].end[most + 1 :] > 1.9)
    assert np.all(np.diff(columns[0].end) >= 0.0)


def test_a_late_partner_delays_its_message_and_slows_the_other_one():
    schedule = each(
        [send(2, 2), work("idle", 0.0)], [work("late", 1.0), send(2, 1)], [recv(0, 2), recv(1, 1, "second", stream="s")]
    )
    found = spans(setup(schedule))
    # one GB alone until 1 s; then half a GB/s each until 3 s
    assert found[2, "second", 0] == [0.0, 1.0, 3.0]
    assert found[2, "recv", 0] == [0.0, 0.0, 3.0]


def test_a_buffered_send_ends_at_once():
    schedule = each([send(1, 1, buffered=True), work("after", 1.0)], [work("before", 0.25), recv(0, 1)])
    found = spans(setup(schedule))
    assert found[0, "send", 0] == [0.0, 0.0, 0.0]
    assert found[0, "after", 0] == [0.0, 0.0, 1.0]
    assert found[1, "recv", 0] == [0.25, 0.25, 1.0]


def test_a_receive_ends_at_once_after_the_delivery_and_waits_before_it():
    late = spans(setup(each([send(1, 1, buffered=True)], [work("before", 5.0), recv(0, 1)])))
    assert late[1, "recv", 0] == [5.0, 5.0, 5.0]
    early = spans(setup(each([work("before", 2.0), send(1, 1, buffered=True)], [recv(0, 1)])))
    assert early[1, "recv", 0] == [0.0, 2.0, 3.0]


def test_buffered_sends_match_within_a_step_and_in_order():
    ops = [send(1, 1, "a", buffered=True), send(1, 2, "b", buffered=True)]
    received = [recv(0, 1, "a"), work("between", 0.5), recv(0, 2, "b")]
    for fold in (False, True):
        made = setup(each(ops, received, steps=2), fold=fold)
        outcome = run(made)
        found = spans(made, outcome)
        # all four are under way at once at a quarter of a GB/s: the two of 1 GB until 4 s, the others until 6 s
        assert {found[0, name, step][2] for name in "ab" for step in (0, 1)} == {0.0}
        assert found[1, "a", 0] == [0.0, 0.0, 4.0]
        assert found[1, "b", 0] == [4.5, 4.5, 6.0]
        assert found[1, "a", 1] == [6.0, 6.0, 6.0]
        assert found[1, "b", 1] == [6.5, 6.5, 6.5]
        assert sorted((one.op.nbytes, one.times) for one in outcome.communications) == [(GB, 2), (2 * GB, 2)]


def test_partners_have_the_same_communication_number():
    action = Action("F", 0, 0)
    schedule = each(
        [send(1, 1, action=action), work("a", 1.0), Copy(name="save", nbytes=0.0, to="host")],
        [recv(0, 1, action=action), work("b", 1.0), Copy(name="save", nbytes=0.0, to="host")],
    )
    first, second = (run(setup(schedule, crossbar(2, hosts=1))).columns[rank].communication.tolist() for rank in (0, 1))
    assert first[0] == second[0]
    assert first[1] == second[1] == NO_COMMUNICATION
    assert len({first[0], first[2], second[2]}) == 3


class Planned(Unfolded):
    """Rank classes in which a collective of n bytes has the n-th of given plans, on rows of given *capacity*."""

    def __init__(self, schedule, communicator, plans, capacity):
        super().__init__(schedule, communicator)
        self.plans, self._capacity = plans, capacity

    @property
    def capacity(self):
        return self._capacity

    def plan(self, name, op):
        return self.plans[int(op.nbytes)]


def planned(plans, capacity, **more):
    """A setup with concurrent collectives, one for each of *plans* (a list of phases), each on its own stream."""
    ops = [
        Collective(name=f"op {number}", kind="all_reduce", over="dp", nbytes=number, stream=f"stream {number}")
        for number in range(len(plans))
    ]
    made = setup(each(ops))
    whole = [TransferPlan("any", "any", tuple(phases), 0.0) for phases in plans]
    classes = Planned(made.schedule, made.classes.communicator, whole, capacity)
    return Setup(made.schedule, classes, made.pricing, **more)


def flow(rows, bound=float("inf")):
    numbers, ones = np.array(list(rows), np.int64), np.ones(len(rows))
    return Flow(numbers, ones, numbers, np.array(list(rows.values())), bound, bound)


def test_phases_follow_one_another_with_their_latencies():
    one, two = flow({0: 1.0}), flow({1: 2.0})
    phases = [Phase(0.5, (one, two), 10.0), Phase(0.25), Phase(1.0, (one,), 99.0, contended=False), Phase(0.0, (two,))]
    made = planned([phases], [10.0, 10.0])
    outcome = run(made)
    # the second flow has half of its row's capacity: 2 s
    assert outcome.columns[0].end.tolist() == [0.5 + 2.0 + 0.25 + 1.0]
    assert dict(zip(outcome.flows, outcome.flow_bytes.tolist(), strict=True)) == {one: 109.0, two: 10.0}
    assert sorted(zip(*(column.tolist() for column in outcome.intervals), strict=True)) == [
        (0, 0.5, 1.5, 10.0),
        (0, 2.75, 3.75, 99.0),
        (1, 0.5, 2.5, 5.0),
    ]


ALONE = flow({0: 1.0}, bound=10.0)


@pytest.mark.parametrize(
    "phases",
    [
        [],
        [Phase(0.5)],
        [Phase(0.5, (ALONE,), 10.0), Phase(0.25), Phase(1.0, (ALONE,), 99.0, contended=False), Phase(0.0, (ALONE,))],
    ],
)
def test_a_plan_takes_as_long_on_idle_links_as_it_says(phases):
    outcome = run(planned([phases], [10.0]))
    assert outcome.columns[0].end.tolist() == [TransferPlan("any", "any", tuple(phases), 0.0).alone]


def test_a_bounded_flow_leaves_the_rest_to_others_and_a_flow_without_rows_takes_no_time():
    made = planned(
        [
            [Phase(0.0, (flow({0: 1.0}, bound=2.0),), 10.0)],
            [Phase(0.0, (flow({0: 1.0}),), 8.0)],
            [Phase(1.0, (flow({}),), 5.0)],
        ],
        [10.0],
    )
    assert list(ends(made).values()) == [5.0, 1.0, 1.0]


def test_flows_without_a_common_row_depend_on_each_other_through_a_third():
    # a and c do not share a row, but b shares one with each: all change when one ends
    a, b, c = flow({0: 1.0}), flow({0: 1.0, 1: 1.0}), flow({1: 1.0})
    made = planned([[Phase(0.0, (a,), 5.0)], [Phase(0.0, (b,), 10.0)], [Phase(0.0, (c,), 100.0)]], [10.0, 20.0])
    # 5, 5, 15 until a ends at 1 s; then b has 10 of row 0 and ends at 1.5 s; c has 10, and at last 20: 80 B at 1.5 s
    assert list(ends(made).values()) == pytest.approx([1.0, 1.5, 1.5 + 80.0 / 20.0])


def test_a_capacity_that_changes_half_way():
    cluster = crossbar(2)
    schedule = each([send(1, 1)], [recv(0, 1)])
    row = cluster.number("gpu 0", "switch 0")
    for changes, end in (
        ([(0.5, row, GB / 2)], 1.5),
        ([(0.5, row, 4 * GB)], 1.0),  # the other port still carries 1 GB/s
        ([(0.25, row, 0.0), (2.0, row, GB)], 2.75),
        ([(0.0, row, GB / 4), (1.0, row, GB)], 1.75),
        ([(7.0, row, 1.0)], 1.0),
    ):
        made = setup(schedule, cluster, capacity_changes=[CapacityChange(*change) for change in changes])
        assert ends(made)[1, "recv"] == pytest.approx(end)


def test_a_flow_from_outside_takes_its_share_from_begin_to_end():
    cluster = crossbar(2)
    schedule = each([send(1, 2)], [recv(0, 2)])
    free, bound = port(cluster, 0), port(cluster, 0, bound=GB / 4)
    for one, end in (
        (Background(free, 1.0, 2.0), 2.5),
        (Background(bound, 1.0, 2.0), 2.25),
        (Background(free, 0.0, 100.0), 4.0),
        (Background(free, 3.0, 4.0), 2.0),
    ):
        outcome = run(setup(schedule, cluster, background=[one]))
        assert outcome.columns[1].end.tolist() == [end]
        carried = dict(zip(outcome.flows, outcome.flow_bytes.tolist(), strict=True))
        rate = min(one.flow.bound, GB / 2)
        assert carried.get(one.flow, 0.0) == pytest.approx(rate * max(0.0, min(one.end, end) - one.begin))
        assert outcome.intervals.end.max() <= end


@st.composite
def traffic(draw):
    capacity = draw(st.lists(st.floats(1, 100), min_size=1, max_size=4))
    routes = st.dictionaries(st.integers(0, len(capacity) - 1), st.floats(0.5, 2.0), min_size=1)
    one = st.tuples(st.floats(0, 5), routes, st.floats(1, 1000), st.sampled_from([float("inf"), 20.0]))
    changes = st.tuples(st.floats(0, 50), st.integers(0, len(capacity) - 1), st.floats(1, 100))
    return capacity, draw(st.lists(one, min_size=1, max_size=6)), sorted(draw(st.lists(changes, max_size=3)))


@settings(deadline=None)
@given(traffic())
def test_no_row_is_above_its_capacity_and_all_bytes_arrive(case):
    capacity, wanted, changes = case
    plans = [[Phase(begin, (flow(rows, bound),), nbytes)] for begin, rows, nbytes, bound in wanted]
    made = planned(plans, capacity, capacity_changes=[CapacityChange(*change) for change in changes])
    outcome = run(made)
    number, begin, end, rate = outcome.intervals
    moments = sorted({*begin.tolist(), *(time for time, _, _ in changes)})
    for moment in moments:
        here = [outcome.flows[n] for n in number[(begin <= moment) & (moment < end)].tolist()]
        rates = rate[(begin <= moment) & (moment < end)].tolist()
        for row in range(len(capacity)):
            limit = [capacity[row], *(c for time, changed, c in changes if changed == row and time <= moment)][-1]
            used = sum(
                dict(zip(f.rows, f.weights, strict=True)).get(row, 0.0) * r for f, r in zip(here, rates, strict=True)
            )
            assert used <= limit * (1 + 1e-9)
    for n, one in enumerate(outcome.flows):
        mine = number == n
        assert ((end - begin) * rate)[mine].sum() == pytest.approx(outcome.flow_bytes[n], rel=1e-9)
        assert (rate[mine] <= one.bound).all()


def busy_network(seed: int):
    """Random (capacity of each row, [(rows and bound of a flow)], phases of each plan, changes of capacity)."""
    draw = np.random.default_rng(seed)
    rows, count, equal = int(draw.integers(2, 25)), int(draw.integers(2, 60)), seed % 2 == 0
    capacity = [10.0] * rows if equal else draw.uniform(1, 100, rows).tolist()
    flows = []
    for _ in range(count):
        # most flows cross one to three rows, the others many: as messages beside the rings of collectives
        crossed = int(draw.integers(1, rows + 1)) if draw.random() < 0.2 else min(rows, 1 + int(draw.geometric(0.5)))
        weights = {
            int(row): 1.0 if equal else float(draw.choice([0.5, 1, 2])) for row in draw.permutation(rows)[:crossed]
        }
        flows.append(flow(weights, float(draw.choice([np.inf, 20.0, 3.0]))))
    plans = [
        [
            Phase(float(draw.uniform(0, 20)), (flows[own],), float(draw.uniform(1, 200)))
            for own in draw.integers(0, count, 2)
        ]
        for _ in flows
    ]
    changes = [(time, int(draw.integers(0, rows)), float(draw.choice([5, 40]))) for time in (10.0, 20.0, 30.0)]
    return capacity, plans, changes


@pytest.mark.parametrize("seed", range(12))
def test_rates_are_fair_at_all_times_though_only_some_are_solved(seed):
    capacity, plans, changes = busy_network(seed)
    outcome = execution.run(planned(plans, capacity, capacity_changes=[CapacityChange(*change) for change in changes]))
    number, begin, end, rate = outcome.intervals
    assert len(begin) > len(plans)
    for moment in np.unique(begin).tolist():
        active = (begin <= moment) & (moment < end)
        flows = [outcome.flows[one] for one in number[active].tolist()]
        now = [
            [own, *(c for time, changed, c in changes if changed == row and time <= moment)][-1]
            for row, own in enumerate(capacity)
        ]
        fair = max_min([dict(zip(f.rows, f.weights, strict=True)) for f in flows], [f.bound for f in flows], now)
        assert rate[active] == pytest.approx(fair, rel=1e-12)
