"""Calibrated on single messages, the simulator foretells what it was not fitted to: collectives on a real network.

The network is the kernel's TCP between network namespaces; what is held against the model is time on a clock, median of
several repetitions, and the bounds are wide enough for a machine that does other things meanwhile.
"""

from __future__ import annotations

import pytest

from simulator.network.transport.gloo import gloo
from simulator.network.transport.transport import Transport
from simulator.replay.testbed import testbed
from simulator.replay.testbed.iproute import why_not
from tests.simulator.replay.benches import Asked, bench
from topologies.tree import tree

pytest.importorskip("torch")
reason = why_not()
pytestmark = [pytest.mark.testbed, pytest.mark.skipif(reason is not None, reason=f"no testbed: {reason}")]

STAR = tree([4], [300e6 / 8], [0.0], hosts=0)
PORT = 200e6 / 8
OVERSUBSCRIBED = tree([2, 4], [PORT, PORT], [0.0, 0.0], hosts=0)
THREE_LEVELS = tree([2, 2, 2], [PORT / 2, 0.75 * PORT, PORT], [0.0] * 3, hosts=0)


@pytest.fixture(scope="module")
def calibrated() -> Transport:
    """Gloo with what single messages between two ranks of the star tell."""
    from simulator.replay.calibration.calibrate import calibrate
    from simulator.replay.calibration.measure import measure
    from simulator.replay.calibration.measurement import SEND, Sweep
    from simulator.replay.launch import launch

    devices = STAR.gpus[:2]
    sweep = Sweep(sizes=(8, 1000, 500_000, 1_000_000, 2_000_000), kinds=(SEND,), batch_seconds=0.3)
    with testbed.build(STAR, devices) as bed:
        results = launch(measure, [sweep, sweep], places=bed.places, timeout=60.0)
        assert results is not None
        return calibrate(results[0], bed.cluster, devices, gloo()).transport


MB = 1e6
LARGE: list[Asked] = [(kind, size * MB, "auto") for kind in ("all_reduce", "broadcast") for size in (1, 5, 20)]
SERVED: list[Asked] = [(kind, size * MB, "direct") for size in (1, 5, 20) for kind in ("broadcast", "reduce")]
OTHERS: list[Asked] = [
    (kind, 4 * MB, "auto") for kind in ("all_gather", "reduce_scatter", "reduce", "gather", "scatter")
]
CROSSING: list[Asked] = [("all_reduce", MB, "auto"), ("all_reduce", 4 * MB, "auto"), ("broadcast", 2 * MB, "auto")]


def hold(rows, bound):
    wrong = [str(row) for row in rows if abs(row.error) > bound]
    assert not wrong, "; ".join(wrong)


def test_single_messages_tell_the_wire_and_little_else(calibrated: Transport) -> None:
    """TCP over Ethernet carries 1,448 of 1,538 bytes; a message wakes two processes."""
    assert calibrated.efficiency["NET"] == pytest.approx(1448 / 1538, rel=0.01)
    assert 10e-6 < calibrated.message(0.0, "NET", "direct", "tcp", None) < 1e-3  # type: ignore[arg-type]


def test_collectives_on_a_star(calibrated: Transport) -> None:
    """Ring all-reduce and broadcast, and the two halves of a parameter server's work."""
    hold(bench(STAR, [range(4)], [*LARGE, *SERVED], calibrated, repeat=2), 0.08)


def test_collectives_of_other_kinds(calibrated: Transport) -> None:
    """By the algorithms that Gloo's source has for them."""
    hold(bench(STAR, [range(4)], OTHERS, calibrated, repeat=2), 0.08)


def test_an_exchange_takes_as_long_as_the_order_of_coming_makes_it(calibrated: Transport) -> None:
    """Three blocks in a row if all four come at once, five if one is late: simulated is the latter."""
    (row,) = bench(STAR, [range(4)], [("all_to_all", 4 * MB, "auto")], calibrated, repeat=2)
    assert 0.95 * 3 / 5 <= row.measured / row.simulated <= 1.05


@pytest.mark.parametrize(
    ("cluster", "groups"),
    [
        (OVERSUBSCRIBED, [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (OVERSUBSCRIBED, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (OVERSUBSCRIBED, [(0, 1, 2, 3, 4, 5, 6, 7)]),
        (THREE_LEVELS, [(0, 2, 4, 6), (1, 3, 5, 7)]),
    ],
    ids=["four pairs", "two rings of four", "one ring of eight", "two rings over three levels"],
)
def test_groups_that_cross_a_thin_link_at_once(cluster, groups, calibrated: Transport) -> None:
    hold(bench(cluster, groups, CROSSING, calibrated, repeat=2), 0.10)
