"""An all-to-all with bytes for each peer: its parts add up, and the busiest receiver's port determines its time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.network.collectives import direct
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.library.tuner import unequal
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.reading.errors import ScheduleError, SimulatorError
from clustersim.simulator.replay.replay import scaled
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import BySender, Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform

BYTES = st.lists(st.integers(0, 5), min_size=2, max_size=6).map(lambda counts: tuple(1e6 * n for n in counts))

LATENCY, BANDWIDTH = 1e-3, 1e9


def plan(per_peer, nbytes=None, given=True):
    size = len(per_peer)
    cluster = uniform(size, BANDWIDTH, LATENCY, hosts=0)
    network = Communicator(cluster, cluster.gpus, ideal())
    ranks = tuple(range(size))
    return network.collective("all_to_all", "ep", ranks, nbytes or sum(per_peer), per_peer=per_peer if given else None)


@given(BYTES)
def test_each_pair_sends_the_bytes_of_its_receiver(per_peer):
    size = len(per_peer)
    sent = dict.fromkeys(((i, j) for i in range(size) for j in range(size) if i != j), 0.0)
    for step in unequal(direct.all_to_all(Group(size), sum(per_peer)), per_peer):
        for transfer in step.transfers:
            sent[transfer] += step.nbytes
    assert sent == pytest.approx({(i, j): per_peer[j] for i, j in sent})


@given(BYTES)
def test_answers_have_the_bytes_of_their_sender(per_peer):
    """The transpose: what rank i got from each, it sends back; as many bytes pass each pair of ports."""
    size = len(per_peer)
    sent = dict.fromkeys(((i, j) for i in range(size) for j in range(size) if i != j), 0.0)
    for step in unequal(direct.all_to_all(Group(size), sum(per_peer)), BySender(per_peer)):
        for transfer in step.transfers:
            sent[transfer] += step.nbytes
    assert sent == pytest.approx({(i, j): per_peer[i] for i, j in sent})
    if sum(map(bool, per_peer)) > 1:
        there, back = plan(per_peer), plan(BySender(per_peer), sum(per_peer))
        assert there.sent_bytes == pytest.approx(back.sent_bytes)


@settings(deadline=None)
@given(BYTES.filter(lambda per_peer: sum(map(bool, per_peer)) > 1))
def test_on_a_crossbar_the_busiest_port_decides(per_peer):
    size = len(per_peer)
    received = max((size - 1) * nbytes for nbytes in per_peer)
    sent = max(sum(per_peer) - own for own in per_peer)
    made = plan(per_peer)
    seconds = sum(
        phase.latency + phase.nbytes * max(_load(phase).values(), default=0) / BANDWIDTH for phase in made.phases
    )
    assert seconds == pytest.approx(LATENCY + max(received, sent) / BANDWIDTH)
    assert made.sent_bytes == pytest.approx((size - 1) * sum(per_peer))


def _load(phase):
    """Flows on each link."""
    load = {}
    for flow in phase.flows:
        for link in flow.links:
            load[link] = load.get(link, 0) + 1
    return load


def test_equal_bytes_are_a_plain_all_to_all():
    unequal_plan, equal_plan = plan((2e6,) * 4), plan((2e6,) * 4, given=False)
    assert [(p.latency, p.nbytes, len(p.flows)) for p in unequal_plan.phases] == [
        (p.latency, p.nbytes, len(p.flows)) for p in equal_plan.phases
    ]


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("fold", [True, False])
def test_a_schedule_with_bytes_for_each_peer(engine, fold):
    """Two groups. The position with most bytes receives a share from each of the other three through its port."""
    per_peer = (1e6, 5e6, 1e6, 1e6)
    dispatch = Collective(name="dispatch", kind="all_to_all", over="ep", nbytes=8e6, per_peer=per_peer)
    plain = Collective(name="plain", kind="all_to_all", over="ep", nbytes=8e6)
    schedule = Schedule(Mesh.regular({"ep": 4, "dp": 2}), (Program("rank", (dispatch, plain)),), (0,) * 8)
    check(schedule)
    timeline = simulate(schedule, uniform(8, BANDWIDTH, LATENCY, hosts=0), engine=engine, fold=fold)
    ends = [span.end for span in timeline.spans(0)]
    assert ends == pytest.approx([LATENCY + 15e6 / BANDWIDTH, 2 * LATENCY + (15e6 + 6e6) / BANDWIDTH])
    assert sum(timeline.axis_bytes.values()) == pytest.approx(2 * (3 * 8e6 + 4 * 6e6))


def test_partners_must_agree_on_the_bytes_of_each_peer():
    ops = [
        Collective(name="dispatch", kind="all_to_all", over="ep", nbytes=8e6, per_peer=per_peer)
        for per_peer in ((4e6, 4e6), (3e6, 5e6))
    ]
    programs = tuple(Program(f"rank {number}", (op,)) for number, op in enumerate(ops))
    with pytest.raises(ScheduleError, match="does not agree with rank 0"):
        check(Schedule(Mesh.regular({"ep": 2}), programs, (0, 1)))


def test_a_replay_of_fewer_bytes_scales_those_of_each_peer():
    op = Collective(name="dispatch", kind="all_to_all", over="ep", nbytes=8e6, per_peer=(3e6, 5e6))
    schedule = Schedule(Mesh.regular({"ep": 2}), (Program("rank", (op,)),), (0, 0))
    (half,) = scaled(schedule, 0.5).programs[0].ops
    assert (half.nbytes, half.per_peer) == (4e6, (1.5e6, 2.5e6))


def test_a_wrong_number_of_peers_is_reported():
    op = {"name": "dispatch", "over": "ep"}
    with pytest.raises(ScheduleError, match="dispatch: bytes for each peer belong to an all_to_all, not to broadcast"):
        Collective(**op, kind="broadcast", nbytes=3.0, per_peer=(1.0, 2.0))
    with pytest.raises(ScheduleError, match="dispatch: 3 B for all peers, but nbytes is 4"):
        Collective(**op, kind="all_to_all", nbytes=4.0, per_peer=(1.0, 2.0))
    cluster = uniform(3, BANDWIDTH, LATENCY, hosts=0)
    with pytest.raises(SimulatorError, match="all_to_all over ep: bytes for 2 peers in a group of 3"):
        Communicator(cluster, cluster.gpus, ideal()).collective("all_to_all", "ep", (0, 1, 2), 3.0, per_peer=(1.0, 2.0))


def test_an_algorithm_that_forwards_blocks_is_reported():
    with pytest.raises(SimulatorError, match="needs an algorithm that sends each block directly"):
        unequal([Step(((0, 1), (1, 0)), 1.0, repeat=2)], (1.0, 2.0))
