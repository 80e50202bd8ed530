"""Costs of Gloo's algorithms on equal ports, in message times of one block, without latency."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from clustersim.simulator.hardware.links import PAYLOAD
from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform

BANDWIDTH = 1e9


def vectors(kind: str, ranks: int, root: int = 0) -> Fraction:
    """The number of vectors that one port could have carried in that time."""
    op = Collective(name=kind, kind=kind, over="all", nbytes=1e9, root=root)
    schedule = Schedule(Mesh.regular({"all": ranks}), (Program("rank", (op,)),), (0,) * ranks)
    bare = replace(gloo(), hop_latency={}, ceilings={})
    seconds = simulate(schedule, uniform(ranks, BANDWIDTH, 0.0), transport=bare).makespan
    return Fraction(seconds * BANDWIDTH * PAYLOAD / 1e9).limit_denominator(1000)


@pytest.mark.parametrize(("levels", "ranks"), [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32)])
def test_a_broadcast_loses_the_rounds_of_its_tree(levels, ranks):
    """The root's messages share its port, then those of the child with most children share its port, and so on."""
    for root in (0, ranks - 1):
        assert vectors("broadcast", ranks, root) == levels * (levels + 1) // 2


@pytest.mark.parametrize("ranks", [3, 4, 7, 8])
def test_rings(ranks):
    share = Fraction(ranks - 1, ranks)
    assert vectors("all_reduce", ranks) == 2 * share
    assert vectors("reduce_scatter", ranks) == 2 * share
    assert vectors("all_gather", ranks) == share
    assert vectors("reduce", ranks, root=1) == 2 * share


def test_two_ranks_that_gather_wait_for_each_others_requests():
    assert vectors("all_gather", 2) == Fraction(3, 4)
    assert vectors("all_reduce", 2) == 1


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_the_last_rank_of_an_exchange_waits_for_half_of_its_blocks(ranks):
    """As measured on a testbed with torch 2.13: 2, 3 and 5 blocks for 2, 3 and 4 ranks, between 10 and 11 for 8."""
    assert vectors("all_to_all", ranks) == Fraction(ranks - 1 + ranks // 2, ranks)
