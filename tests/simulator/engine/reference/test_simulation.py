"""Whole simulations: deadlocks, progress, and random schedules folded and unfolded."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim import topologies
from clustersim.simulator.engine.outcome import Waiting, deadlock
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.engine.reference import simulation
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Delay, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.nodes import V100
from tests.simulator.engine.reference.executing import crossbar, each, run, setup, spans, work

THERE, BACK = Action("F", 0, 0), Action("B", 1, 0)


def crossing(**fields):
    """Two ranks that both receive before they send, on one stream."""

    def ops(me, out, into):
        message = {"over": "dp", "peer": 1 - me, "nbytes": 8.0, "stream": "messages"}
        return Recv(name="recv", action=into, **message), Send(name="send", action=out, **message, **fields)

    return each(ops(0, THERE, BACK), ops(1, BACK, THERE))


@pytest.mark.parametrize("fold", [True, False])
def test_two_ranks_that_receive_first_wait_for_each_other(fold):
    made = setup(crossing(), fold=fold)
    waiting = run(made).waiting
    assert waiting == (Waiting(0, "messages", 0, 0, None, (0,)), Waiting(1, "messages", 0, 0, None, (1,)))
    title, *lines = str(deadlock(made.schedule, made.classes.representative, waiting)).splitlines()
    assert title == "deadlock: 2 ranks have not finished; in a circle"
    assert sorted(lines) == [
        "  rank 0 [messages] recv: receive 8 B from dp 1, step 0, waits for rank 1 [messages]",
        "  rank 1 [messages] recv: receive 8 B from dp 0, step 0, waits for rank 0 [messages]",
    ]


def test_buffered_sends_do_not_help_ranks_that_receive_first():
    assert len(run(setup(crossing(buffered=True))).waiting) == 2
    first = [Send(name="s", over="dp", peer=1, nbytes=8.0, action=THERE, buffered=True)]
    exchange = each(
        [*first, Recv(name="r", over="dp", peer=1, nbytes=8.0, action=BACK)],
        [replace(first[0], peer=0, action=BACK), Recv(name="r", over="dp", peer=0, nbytes=8.0, action=THERE)],
    )
    assert run(setup(exchange)).waiting == ()
    unbuffered = [
        Program(p.role, tuple(replace(op, buffered=False) if isinstance(op, Send) else op for op in p.ops))
        for p in exchange.programs
    ]
    assert len(run(setup(replace(exchange, programs=tuple(unbuffered)))).waiting) == 2


@pytest.mark.parametrize("earlier", range(3))
def test_an_awaited_op_of_the_same_rank_is_named(earlier):
    ops = Recv(name="recv", over="dp", peer=0, nbytes=8.0, action=BACK, stream="in"), work("w", 1.0, after=("recv",))
    late = Send(name="send", over="dp", peer=1, nbytes=8.0, action=BACK, after=("sum",))
    total = Collective(name="sum", kind="all_reduce", over="dp", nbytes=8.0)
    before = [work(f"before {number}", 1.0, stream="in") for number in range(earlier)]
    made = setup(each([replace(total, stream="compute"), late], [*before, *ops, total]))
    outcome = run(made)
    assert Waiting(1, "compute", earlier + 1, 0, earlier) in outcome.waiting
    assert np.isnan(outcome.columns[1].end[earlier:]).all()
    text = str(deadlock(made.schedule, made.classes.representative, outcome.waiting))
    assert "rank 1 [compute] w: compute 1 kernels, step 0, waits for rank 1 [in] to end recv" in text
    assert "rank 0 [compute] sum: all_reduce 8 B over dp, step 0, waits for rank 1 [compute]" in text


def test_folded_ranks_that_have_arrived_do_not_wait_for_themselves():
    # ranks 0 to 2 are one class; rank 3 waits for a message, and its sender waits for rank 3
    total = Collective(name="sum", kind="all_reduce", over="dp", nbytes=8.0, algorithm="direct")
    message = {"over": "pp", "nbytes": 8.0, "action": THERE}
    mesh = Mesh.regular({"dp": 4, "pp": 2})
    plain, last = Program("plain", (total,)), Program("last", (Recv(name="r", peer=1, **message), total))
    sender = Program(
        "sender", (Recv(name="b", peer=0, over="pp", nbytes=8.0, action=BACK), Send(name="s", peer=0, **message))
    )
    back = Program("last", (*last.ops, Send(name="back", peer=1, over="pp", nbytes=8.0, action=BACK)))
    schedule = Schedule(mesh, (plain, back, Program("none", ()), sender), (0, 0, 0, 1, 2, 2, 2, 3))
    made = setup(schedule, fold=True)
    assert list(made.classes.representative)[:4] == [0, 0, 0, 3]
    text = str(deadlock(schedule, made.classes.representative, run(made).waiting))
    assert "rank 3 [compute] r" in text
    assert "waits for rank 0" not in text


def test_progress_is_reported_and_grows(monkeypatch):
    monkeypatch.setattr(simulation, "EVENTS_BETWEEN_REPORTS", 10)
    told = []
    run(setup(each([work(f"op {number}", 1.0) for number in range(50)])), told.append)
    assert len(told) > 5
    assert told == sorted(told)
    assert 0.0 <= told[0] < told[-1] <= 1.0


def test_no_ops_no_events():
    outcome = run(setup(each([], [])))
    assert [len(own.op) for own in outcome.columns.values()] == [0, 0]
    assert outcome.waiting == ()


@st.composite
def schedules(draw):
    """Random programs of 8 ranks: computations, collectives, messages around the stages, delays, a server."""
    sizes = draw(st.permutations(draw(st.sampled_from([(2, 2, 2), (4, 2, 1), (8, 1, 1), (1, 4, 2)]))))
    mesh = Mesh.regular(dict(zip(("tp", "dp", "pp"), sizes, strict=True)))
    stages = len(mesh.axes["pp"].groups[0])
    one = st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["all_reduce", "broadcast", "all_to_all"]),
            "over": st.sampled_from(["tp", "dp"]),
            "nbytes": st.sampled_from([1e4, 3e6, 2e8]),
            "stream": st.sampled_from(["compute", "other", "third"]),
        }
    )
    rounds = draw(st.lists(one, min_size=1, max_size=3))
    buffered, served = draw(st.booleans()), draw(st.booleans())
    seconds = [draw(st.sampled_from([0.0, 1e-3, 3e-3])) for _ in range(stages)]

    def ops(stage):
        for number, fields in enumerate(rounds):
            yield work(f"work {number}", seconds[stage])
            yield Delay(name=f"delay {number}", seconds=1e-3, stream="other", after=(f"work {number}",))
            yield Collective(name=f"collective {number}", after=(f"work {number}",), **fields)
            if served:
                yield work(f"served {number}", 5e-4, server="driver", priority=number % 2, stream="third")
            message = {"over": "pp", "nbytes": 1e6, "action": Action("F", 0, number)}
            peers = (stage + 1) % stages, (stage - 1) % stages
            if stages > 1:
                yield Send(name=f"send {number}", peer=peers[0], stream="to", buffered=buffered, **message)
                yield Recv(name=f"recv {number}", peer=peers[1], stream="from", **message)
                yield work(f"more {number}", seconds[stage], after=(f"recv {number}",), stream="third")

    programs = tuple(Program(f"stage {stage}", tuple(ops(stage))) for stage in range(stages))
    place = mesh.axes["pp"].place
    return Schedule(mesh, programs, tuple(place(rank)[1] for rank in range(8)), steps=draw(st.integers(1, 2)))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(), st.data())
def test_folded_equals_unfolded_and_ops_of_a_stream_follow_one_another(schedule, data):
    node = {**V100, "nics": data.draw(st.sampled_from([1, 4]))}
    cluster = data.draw(
        st.sampled_from([crossbar(8), topologies.cluster({"nodes": 2, "node": node, "fabric": {"kind": "switch"}})])
    )
    late = data.draw(st.dictionaries(st.integers(0, 7), st.sampled_from([1.5, 2.0]), max_size=1))
    how = {
        "variation": Variation(jitter=data.draw(st.sampled_from([0.0, 0.1])), stragglers=late),
        "transport": data.draw(st.sampled_from([None, nccl()])),
        "fidelity": data.draw(st.sampled_from(["flow", "chunk", "alpha_beta"])),
    }
    plain, folded = setup(schedule, cluster, **how), setup(schedule, cluster, fold=True, **how)
    outcomes = run(plain), run(folded)
    found, other = spans(plain, outcomes[0]), spans(folded, outcomes[1])
    assert found.keys() == other.keys()
    for key, times in found.items():
        assert times == pytest.approx(other[key], rel=1e-9, abs=1e-12)
    for outcome in outcomes:
        for rank, own in outcome.columns.items():
            streams = np.array([op.stream for op in schedule.program(rank).ops])[own.op]
            receives = np.array([isinstance(op, Recv) for op in schedule.program(rank).ops])[own.op]
            for stream in set(streams):
                mine = streams == stream
                on_its_way = receives[mine][1:] & receives[mine][:-1]
                assert (own.begin[mine][1:] >= np.where(on_its_way, own.begin[mine][:-1], own.end[mine][:-1])).all()
                assert (own.end[mine][1:] >= own.end[mine][:-1]).all()
            assert (own.ready <= own.begin).all()
            assert (own.begin <= own.end).all()
