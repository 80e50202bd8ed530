"""A simulation calibrated on single messages predicts collectives that the calibration has not seen.

The network is the kernel's TCP between network namespaces. Clocks are compared with the model, so every measured time
is the minimum of several; `shortest` says why, and when a measurement is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.network.transport import GroupProperties, Transport
from clustersim.simulator.replay import testbed
from clustersim.simulator.replay.network_namespaces import unavailable_reason
from clustersim.topologies.uniform_and_tree import tree
from tests.extras import require
from tests.simulator.replay.benches import ROUNDS, Case, Row, bench

require("torch")
reason = unavailable_reason()
pytestmark = [pytest.mark.testbed, pytest.mark.skipif(reason is not None, reason=f"no testbed: {reason}")]

STAR = tree([4], [300e6 / 8], [0.0], hosts=0)
PORT = 200e6 / 8
OVERSUBSCRIBED = tree([2, 4], [PORT, PORT], [0.0, 0.0], hosts=0)
THREE_LEVELS = tree([2, 2, 2], [PORT / 2, 0.75 * PORT, PORT], [0.0] * 3, hosts=0)


STILL_FALLING = 0.02
"""A round that lowers a time of the sweep by more than this share calls for another one."""


@pytest.fixture(scope="module")
def calibrated() -> Transport:
    """Gloo calibrated on single messages between two ranks of the star.

    Each time is the minimum of several rounds: all tests of this file use this calibration, so one sweep beside other
    work on the machine would make all their simulated times too long.
    """
    from clustersim.simulator.replay.launch import launch
    from clustersim.simulator.replay.measure_communication import measure
    from clustersim.simulator.replay.measurements import SEND, Measurement, SizeSweep
    from clustersim.simulator.replay.transport_fit import calibrate

    devices = STAR.gpus[:2]
    sweep = SizeSweep(sizes=(8, 1000, 500_000, 1_000_000, 2_000_000), kinds=(SEND,), budget=3.0)
    with testbed.build(STAR, devices) as built:

        def swept() -> list[Measurement]:
            results = launch(measure, [sweep, sweep], places=built.places, timeout=300.0)
            assert results is not None
            return list(results[0])

        rows = swept()
        for _ in range(ROUNDS - 1):
            before, rows = rows, [min(pair, key=lambda row: row.seconds) for pair in zip(rows, swept(), strict=True)]
            if all(row.seconds > (1 - STILL_FALLING) * old.seconds for old, row in zip(before, rows, strict=True)):
                break
        return calibrate(rows, built.cluster, devices, gloo()).transport


MB = 1e6
RINGS: list[tuple[str, str]] = [("all_reduce", "auto"), ("broadcast", "auto")]
SERVED: list[tuple[str, str]] = [("broadcast", "direct"), ("reduce", "direct")]
OTHERS: list[Case] = [
    (kind, 4 * MB, "auto") for kind in ("all_gather", "reduce_scatter", "reduce", "gather", "scatter")
]
CROSSING: list[Case] = [("all_reduce", MB, "auto"), ("all_reduce", 4 * MB, "auto"), ("broadcast", 2 * MB, "auto")]


def hold(cluster: Cluster, groups: Sequence[Sequence[int]], cases: list[Case], transport: Transport, bound: float):
    """Require that each simulated time differs from the measured one by *bound* at most."""
    wrong: list[Row] = [row for row in bench(cluster, groups, cases, transport, bound) if abs(row.error) > bound]
    assert not wrong, "; ".join(map(str, wrong))


def test_single_messages_determine_the_bandwidth_and_a_small_latency(calibrated: Transport) -> None:
    """TCP over Ethernet carries 1,448 of 1,538 bytes; a message wakes two processes."""
    assert calibrated.efficiency["NET"] == pytest.approx(1448 / 1538, rel=0.01)
    assert 10e-6 < calibrated.message(0.0, "NET", "direct", "tcp", GroupProperties(2, 2)) < 1e-3


@pytest.mark.parametrize("sizes", [(1, 5), pytest.param((20,), marks=pytest.mark.exhaustive)], ids=str)
def test_collectives_on_a_star(calibrated: Transport, sizes: tuple[int, ...]) -> None:
    """Ring all-reduce and broadcast, and the two halves of a parameter server's work."""
    cases = [(kind, size * MB, algorithm) for size in sizes for kind, algorithm in (*RINGS, *SERVED)]
    hold(STAR, [range(4)], cases, calibrated, 0.08)


def test_collectives_of_other_kinds(calibrated: Transport) -> None:
    """With the algorithms of Gloo's source."""
    hold(STAR, [range(4)], OTHERS, calibrated, 0.08)


def test_the_time_of_an_exchange_depends_on_the_order_in_which_ranks_arrive(calibrated: Transport) -> None:
    """Three blocks in a row if all four ranks arrive at once, five if one is late. The simulation assumes the latter.

    So a measured time lies between 3/5 of the simulated one and the whole of it, with 5 % to spare.
    """
    (row,) = bench(STAR, [range(4)], [("all_to_all", 4 * MB, "auto")], calibrated, bound=1 - 1 / 1.05)
    assert 0.95 * 3 / 5 <= row.measured / row.simulated <= 1.05


@pytest.mark.parametrize(
    ("cluster", "groups"),
    [
        pytest.param(OVERSUBSCRIBED, [(0, 4), (1, 5), (2, 6), (3, 7)], id="four pairs"),
        *(
            pytest.param(*one, id=name, marks=pytest.mark.exhaustive)
            for name, one in {
                "two rings of four": (OVERSUBSCRIBED, [(0, 1, 4, 5), (2, 3, 6, 7)]),
                "one ring of eight": (OVERSUBSCRIBED, [(0, 1, 2, 3, 4, 5, 6, 7)]),
                "two rings over three levels": (THREE_LEVELS, [(0, 2, 4, 6), (1, 3, 5, 7)]),
            }.items()
        ),
    ],
)
def test_groups_that_cross_a_thin_link_at_once(cluster, groups, calibrated: Transport) -> None:
    hold(cluster, groups, CROSSING, calibrated, 0.10)
