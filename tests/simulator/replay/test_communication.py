"""The library calls of a replay do what the schedule says: the values that arrive are those of the collective."""

import pytest

from clustersim.simulator.replay.launch import launch
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.extras import require

require("torch")

RANKS, ROOT = 3, 1


def executed(member, op):
    """Each rank's sink and source after *op*. Rank r sends r + 1 plus the place of each element's part."""
    import torch

    from clustersim.simulator.replay.communication import Communication
    from clustersim.simulator.replay.rendezvous import MessageBuffers, rendezvous_of, required_elements

    schedule = Schedule(Mesh.regular({"dp": RANKS}), (Program("rank", (op,)),), (0,) * RANKS)
    communication = Communication(schedule, member)
    communication.open()
    source, sink = required_elements(op, RANKS)
    part = max(1, source // RANKS)
    buffers = MessageBuffers(10.0 * (member.rank + 1) + torch.arange(source) // part, torch.zeros(sink))
    communication.execute(op, rendezvous_of(schedule, member.rank)[0], buffers)
    return buffers.source.tolist(), buffers.sink.tolist()


def outcome(kind, algorithm="auto"):
    op = Collective(name="x", kind=kind, over="dp", nbytes=12.0, root=ROOT, algorithm=algorithm)
    sources, sinks = zip(*launch(executed, [op] * RANKS, timeout=300), strict=True)
    return list(sources), list(sinks)


def test_all_reduce():
    assert outcome("all_reduce")[0] == [[60.0, 63.0, 66.0]] * 3


def test_all_gather():
    assert outcome("all_gather")[1] == [[10.0, 20.0, 30.0]] * 3


def test_reduce_scatter():
    assert outcome("reduce_scatter")[1] == [[60.0], [63.0], [66.0]]


def test_all_to_all():
    assert outcome("all_to_all")[1] == [[10.0, 20.0, 30.0], [11.0, 21.0, 31.0], [12.0, 22.0, 32.0]]


def test_broadcast():
    assert outcome("broadcast")[0] == [[20.0, 21.0, 22.0]] * 3


def test_broadcast_as_messages():
    assert outcome("broadcast", "direct")[1] == [[20.0, 21.0, 22.0], [0.0] * 3, [20.0, 21.0, 22.0]]


def test_reduce():
    assert outcome("reduce")[0][ROOT] == [60.0, 63.0, 66.0]


def test_reduce_as_messages_leaves_the_vectors_side_by_side():
    assert outcome("reduce", "direct")[1][ROOT] == [10.0, 11.0, 12.0, 30.0, 31.0, 32.0]


@pytest.mark.parametrize("algorithm", ["auto", "direct"])
def test_gather(algorithm):
    assert outcome("gather", algorithm)[1][ROOT] == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("algorithm", ["auto", "direct"])
def test_scatter(algorithm):
    assert outcome("scatter", algorithm)[1] == [[20.0], [21.0], [22.0]]
