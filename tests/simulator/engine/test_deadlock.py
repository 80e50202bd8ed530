"""A deadlock is found, and the streams that wait for each other are printed."""

import pytest

from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import DeadlockError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform

THERE, BACK = Action("F", 0, 0), Action("B", 1, 0)
CLUSTER = uniform(gpus=2, hosts=0, bandwidth=1e9, latency=1e-6)


def crossing():
    """Two ranks that both receive before they send, on one stream."""

    def program(me, out, into):
        message = {"over": "pp", "peer": 1 - me, "nbytes": 8.0, "stream": "messages"}
        return Program(
            f"stage {me}", (Recv(name="recv", action=into, **message), Send(name="send", action=out, **message))
        )

    programs = program(0, THERE, BACK), program(1, BACK, THERE)
    return Schedule(Mesh.regular({"pp": 2}), programs, (0, 1))


@pytest.mark.parametrize("fold", [True, False])
def test_two_ranks_that_receive_first_wait_for_each_other(fold):
    schedule = crossing()
    check(schedule)
    with pytest.raises(DeadlockError) as caught:
        simulate(schedule, CLUSTER, fold=fold)
    title, *lines = str(caught.value).splitlines()
    assert title == "deadlock: 2 ranks have not finished; in a circle"
    assert sorted(lines) == [
        "  rank 0 [messages] recv: receive 8 B from pp 1, step 0, waits for rank 1 [messages]",
        "  rank 1 [messages] recv: receive 8 B from pp 0, step 0, waits for rank 0 [messages]",
    ]


def test_an_op_that_waits_for_its_own_rank_is_named():
    # rank 0 computes after a message that rank 1 sends only after a collective that rank 0 joins after computing
    collective = Collective(name="reduce", kind="all_reduce", over="pp", nbytes=8.0)
    message = {"over": "pp", "nbytes": 8.0, "action": BACK}
    first = Program(
        "first",
        (
            Recv(name="recv", peer=1, stream="in", **message),
            Compute(name="work", kernels=(measured(1.0),), after=("recv",)),
            collective,
        ),
    )
    second = Program("second", (collective, Send(name="send", peer=0, stream="out", after=("reduce",), **message)))
    schedule = Schedule(Mesh.regular({"pp": 2}), (first, second), (0, 1))
    check(schedule)
    with pytest.raises(DeadlockError) as caught:
        simulate(schedule, CLUSTER)
    text = str(caught.value)
    assert "rank 0 [compute] work: compute 1 kernels, step 0, waits for rank 0 [in] to end recv" in text
    assert "rank 1 [compute] reduce: all_reduce 8 B over pp, step 0, waits for rank 0 [compute]" in text
    assert "rank 1 [out] send" in text


@pytest.mark.parametrize("fold", [True, False])
def test_ranks_of_one_collective_are_named(fold):
    # ranks 0 and 1 run one program; rank 1 receives from rank 3, which first receives from rank 0
    there = {"over": "pp", "nbytes": 8.0, "action": THERE}
    back = {"over": "dp", "nbytes": 8.0, "action": BACK}
    both = Program(
        "both",
        (
            Recv(name="recv", peer=0, stream="in", **there),
            Compute(name="work", kernels=(measured(1.0),), after=("recv",)),
            Collective(name="reduce", kind="all_reduce", over="tp", nbytes=8.0),
            Send(name="send", peer=1, stream="out", after=("reduce",), **back),
        ),
    )
    out, into = Send(name="to", peer=1, stream="own", **there), Recv(name="from", peer=0, stream="own", **back)
    mesh = Mesh(4, {"tp": Axis(((0, 1),)), "pp": Axis(((2, 0), (3, 1))), "dp": Axis(((0, 3), (1, 2)))})
    schedule = Schedule(mesh, (both, Program("sends", (out, into)), Program("receives", (into, out))), (0, 0, 1, 2))
    check(schedule)
    with pytest.raises(DeadlockError) as caught:
        simulate(schedule, uniform(4, 1e9, 1e-6), fold=fold, variation=Variation(jitter=0.1))
    waiting = "rank 0 [compute] reduce: all_reduce 8 B over tp, step 0, waits for rank 1 [compute]"
    assert waiting in str(caught.value)


@pytest.mark.parametrize("others", [4, 5])
def test_at_most_four_that_a_rank_waits_for_are_named(others):
    """Rank 0 joins a collective before it sends; the others receive first."""
    on = {"over": "dp", "nbytes": 8.0, "stream": "all"}
    joins = Collective(name="sum", kind="all_reduce", **on)
    peers = range(1, 1 + others)
    first = Program("first", (joins, *(Send(name=f"send {n}", peer=n, action=Action("F", 0, n), **on) for n in peers)))
    rest = [Program(f"rank {n}", (Recv(name="recv", peer=0, action=Action("F", 0, n), **on), joins)) for n in peers]
    schedule = Schedule(Mesh.regular({"dp": 1 + others}), (first, *rest), tuple(range(1 + others)))
    with pytest.raises(DeadlockError) as caught:
        simulate(schedule, uniform(gpus=1 + others, hosts=0, bandwidth=1e9, latency=1e-6), fold=False)
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("  rank 0 ")]
    named = ", ".join(f"rank {other} [all]" for other in range(1, 5))
    assert line.partition("waits for ")[2] == named + " ..." * (others > 4)
