"""Computations alone, concurrent on a GPU or a host, concurrent with collectives that hold SMs, at servers; delays."""

import numpy as np
import pytest

from clustersim import topologies
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.engine.setup import Setup, Unfolded
from clustersim.simulator.network.plan import Phase, TransferPlan
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Delay
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.nodes import V100
from tests.simulator.engine.reference.executing import crossbar, each, ends, run, setup, spans, work


def test_an_op_alone_takes_its_duration():
    assert ends(setup(each([work("a", 1.0), work("none", 0.0), work("b", 2.0)]))) == {
        (0, "a"): 1.0,
        (0, "none"): 1.0,
        (0, "b"): 3.0,
    }


def test_two_streams_share_the_gpu():
    ops = work("short", 2.0), work("long", 4.0, stream="other"), work("late", 1.0, stream="third", after=("short",))
    # half the speed each until 4 s; then 2 s of work are left beside 1 s, both at half speed until 6 s; then 1 s alone
    assert ends(setup(each(ops))) == {(0, "short"): 4.0, (0, "late"): 6.0, (0, "long"): 7.0}


def test_tasks_that_end_at_one_instant_end_once():
    # the last of the two to end has the whole GPU for the rest of the instant; the next op is not shortened by it
    ops = work("one", 2.0), Delay(name="wait", seconds=1.0, stream="host", after=("one",)), work("two", 2.0, stream="s")
    assert ends(setup(each(ops))) == {(0, "one"): 4.0, (0, "two"): 4.0, (0, "wait"): 5.0}


class Sms(Unfolded):
    """Rank classes in which every collective takes 3 s; its bytes are the share of the SMs that it holds."""

    def plan(self, name, op):
        return TransferPlan("any", "any", (Phase(3.0),), 0.0, op.nbytes)


def collective(name, share, **fields):
    return Collective(name=name, kind="all_reduce", over="dp", nbytes=share, **fields)


def test_collectives_leave_a_product_of_shares():
    ops = (
        work("first", 1.0),
        work("second", 3.0),
        collective("half", 0.5, stream="dp", after=("first",)),
        collective("fifth", 0.2, stream="other", after=("first",)),
        work("after", 1.0),
    )
    made = setup(each(ops))
    made = Setup(made.schedule, Sms(made.schedule, made.classes.communicator), made.pricing)
    # 0.5 * 0.8 of the GPU from 1 s to 4 s: 1.2 s of the second are done, 1.8 s are left
    assert ends(made) == pytest.approx(
        {(0, "first"): 1.0, (0, "half"): 4.0, (0, "fifth"): 4.0, (0, "second"): 5.8, (0, "after"): 6.8}
    )


def test_ranks_of_one_host_share_it_folded_and_unfolded():
    schedule = Schedule(Mesh.regular({"dp": 6}), (Program("all", (work("update", 1.0, on="host"),)),), (0,) * 6)
    for fold in (False, True):
        found = ends(setup(schedule, crossbar(6, hosts=1), fold=fold))
        assert set(found.values()) == {6.0}


def test_representatives_on_different_hosts_of_one_class_share_a_host():
    node = {**V100, "accelerators": 4}
    cluster = topologies.cluster({"nodes": 2, "node": node, "fabric": {"kind": "switch"}})
    by_host = {}
    for gpu in cluster.gpus:
        by_host.setdefault(cluster.host_of(gpu), []).append(gpu)
    (a, b), (c, d) = list(by_host.values())[:2]
    programs = tuple(Program(role, (work("update", 1.0, on="host"),)) for role in ("one", "other"))
    schedule = Schedule(Mesh.regular({"dp": 4}), programs, (0, 0, 1, 1))
    for fold in (False, True):
        made = setup(schedule, cluster, fold=fold, placement=(a, c, d, b))
        assert set(ends(made).values()) == {2.0}
        assert len(run(made).columns) == (2 if fold else 4)


def test_a_delay_occupies_its_stream_and_nothing_else():
    ops = Delay(name="wait", seconds=2.0, stream="host"), work("after", 1.0, stream="host"), work("work", 2.5)
    # the GPU is shared from 2 s on, when half a second of the work is left
    assert ends(setup(each(ops))) == {(0, "wait"): 2.0, (0, "work"): 3.0, (0, "after"): 3.5}


def test_neither_stragglers_nor_jitter_change_a_delay():
    ops = Delay(name="wait", seconds=2.0), work("work", 2.5)
    made = setup(each(ops), variation=Variation(jitter=0.5, stragglers={0: 2.0}))
    found = ends(made)
    assert found[0, "wait"] == 2.0
    assert found[0, "work"] == 2.0 + made.pricing.durations(0)[0, 1] != 4.5


def test_with_jitter_every_step_of_every_rank_has_durations_of_its_own():
    schedule = each([work("a", 1.0), work("b", 2.0)], [work("c", 4.0)], steps=3)
    made = setup(schedule, variation=Variation(jitter=0.5))
    outcome = run(made)
    for rank in range(2):
        durations = made.pricing.durations(rank)
        assert len(np.unique(durations)) == durations.size
        assert outcome.columns[rank].end.tolist() == pytest.approx(durations.cumsum())


def served(name, seconds, priority=0, **fields):
    return work(name, seconds, server="driver", priority=priority, **fields)


def test_a_server_takes_arrivals_of_one_instant_by_priority_rank_and_op():
    schedule = each(
        [served("a", 1.0, priority=1), served("again", 1.0)],
        # ops of no duration, one after the other, so that it arrives in the same instant
        [*(work(f"none {number}", 0.0) for number in range(5)), served("b", 1.0)],
        [served("d", 1.0, stream="z"), served("c", 1.0, stream="y")],
    )
    found = spans(setup(schedule))
    begins = sorted((begin, rank, name) for (rank, name, _), (_, begin, _) in found.items() if "none" not in name)
    assert begins == [(0.0, 1, "b"), (1.0, 2, "d"), (2.0, 2, "c"), (3.0, 0, "a"), (4.0, 0, "again")]
    assert found[0, "a", 0] == [0.0, 3.0, 4.0]


def test_rounding_does_not_decide_who_is_served_first():
    # 0.1 + 0.2 is 0.30000000000000004: rank 0 arrives a rounding error after rank 1, but it is served first
    schedule = each(
        [work("a", 0.1), work("b", 0.2), served("s", 1.0), served("again", 0.0)],
        [work("a", 0.3), served("s", 1.0)],
        [work("a", 0.1), work("b", 0.2), served("urgent", 1.0, priority=-1)],
    )
    found = spans(setup(schedule))
    assert found[2, "urgent", 0] == [0.1 + 0.2, 0.1 + 0.2, pytest.approx(1.3)]
    assert found[0, "s", 0] == [0.1 + 0.2, pytest.approx(1.3), pytest.approx(2.3)]
    assert found[1, "s", 0] == [0.3, pytest.approx(2.3), pytest.approx(3.3)]
    assert found[0, "again", 0] == pytest.approx([2.3, 3.3, 3.3])


def test_a_server_serves_in_order_of_arrival_and_never_interrupts():
    schedule = each(
        [served("long", 4.0, priority=5)],
        [work("before", 2.0), served("second", 1.0, priority=1)],
        [work("before", 1.0), served("first", 1.0, priority=1)],
        [work("before", 3.0), served("urgent", 1.0)],
    )
    found = ends(setup(schedule))
    assert [found[0, "long"], found[3, "urgent"], found[2, "first"], found[1, "second"]] == [4.0, 5.0, 6.0, 7.0]


def test_a_server_runs_at_full_speed_beside_the_gpu_and_unfolds_equal_ranks():
    ops = served("served", 1.0, stream="host"), work("work", 2.0), Delay(name="wait", seconds=0.5, stream="other")
    schedule = Schedule(Mesh.regular({"dp": 4}), (Program("all", ops),), (0,) * 4)
    for fold in (False, True):
        found = ends(setup(schedule, fold=fold))
        assert [found[rank, "served"] for rank in range(4)] == [1.0, 2.0, 3.0, 4.0]
        assert {found[rank, "work"] for rank in range(4)} == {2.0}


def test_steps_follow_one_another_stream_by_stream():
    ops = work("a", 1.0), served("b", 3.0, stream="other"), work("c", 1.0, after=("b",))
    found = spans(setup(each(ops, steps=2)))
    assert found[0, "c", 0] == [3.0, 3.0, 4.0]
    # the other stream goes on with step 1 while the first still waits in step 0
    assert found[0, "b", 1] == [3.0, 3.0, 6.0]
    assert found[0, "a", 1] == [4.0, 4.0, 5.0]
    assert found[0, "c", 1] == [6.0, 6.0, 7.0]


def test_what_holds_a_server_lets_the_next_one_in_when_it_is_released():
    def turn(name, seconds, priority, begins):
        return [
            work(f"before {name}", begins, stream=name),
            work(f"turn {name}", 0.0, server="queue", holds=True, priority=priority, stream=name),
            work(name, seconds, stream=name, releases="queue"),
        ]

    schedule = each([*turn("first", 4.0, 2, 0.0), *turn("later", 1.0, 1, 1.0), *turn("urgent", 1.0, 0, 2.0)])
    found = spans(setup(schedule))
    # computations share the GPU: "later" is ready after 3 s, "urgent" after 5; "first" ends with all 7 s of work
    assert found[0, "turn first", 0][1:] == [0.0, 0.0]
    assert found[0, "turn urgent", 0][1] == pytest.approx(found[0, "first", 0][2])
    assert found[0, "turn later", 0][1] == pytest.approx(found[0, "urgent", 0][2])
    assert found[0, "later", 0][2] == pytest.approx(9.0)
