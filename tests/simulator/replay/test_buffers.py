"""Buffers have the size of the largest communication, and a replay fits into memory."""

from math import inf

import pytest

from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.replay.rendezvous import (
    available_bytes,
    fitting_scale,
    longest_buffers,
    required_elements,
    total_bytes,
)
from clustersim.simulator.replay.replay import scaled
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import COLLECTIVES, Collective, Compute, Copy, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule


def collective(kind, algorithm="auto", nbytes=40.0):
    return Collective(name=kind, kind=kind, over="dp", nbytes=nbytes, algorithm=algorithm)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # 40 B are 10 elements; a quarter of it is 3, all parts together 12
        (collective("all_reduce"), (10, 0)),
        (collective("broadcast"), (10, 0)),
        (collective("reduce"), (10, 0)),
        (collective("broadcast", "direct"), (10, 10)),
        (collective("reduce", "direct"), (10, 30)),
        (collective("all_gather"), (3, 12)),
        (collective("gather"), (3, 12)),
        (collective("reduce_scatter"), (12, 3)),
        (collective("scatter"), (12, 3)),
        (collective("all_to_all"), (12, 12)),
        (Send(name="send", over="dp", peer=1, nbytes=40.0), (10, 0)),
        (Recv(name="receive", over="dp", peer=1, nbytes=40.0), (0, 10)),
        (Copy(name="copy", nbytes=40.0, to="host"), (10, 0)),
        (Compute(name="compute", kernels=(measured(1.0),)), (0, 0)),
    ],
    ids=str,
)
def test_elements(op, expected):
    assert required_elements(op, 4) == expected


def test_every_collective_has_a_size():
    assert all(sum(required_elements(collective(kind), 4)) for kind in COLLECTIVES)


SCHEDULE = Schedule(
    Mesh.regular({"dp": 4}),
    (Program("rank", (collective("all_reduce"), collective("all_gather"), Copy(name="c", nbytes=80.0, to="host"))),),
    (0,) * 4,
)


def test_a_stream_uses_its_buffers_again_and_again():
    assert longest_buffers(SCHEDULE, 0, SCHEDULE.program(0).ops) == (20, 12)
    assert total_bytes(SCHEDULE) == 4 * 4 * (20 + 12 + 20)


def test_a_schedule_that_does_not_fit_is_halved_until_it_does():
    large = scaled(SCHEDULE, 1e6)
    needs = 2 * total_bytes(large)
    assert fitting_scale(large, inf) == 1.0
    assert fitting_scale(large, 2 * needs) == 1.0
    assert fitting_scale(large, needs) == 0.5
    assert fitting_scale(large, 0.3 * needs) == 0.125


def test_a_machine_has_memory():
    assert available_bytes() > 1e6
