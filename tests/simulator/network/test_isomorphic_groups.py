"""Isomorphic groups have equal plans: the relabelled plan of one group equals the plan made for another."""

from __future__ import annotations

import random

import numpy as np
import pytest

from clustersim import topologies
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.isomorphic_groups import Placements
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.network.rings_and_tori import group_of
from tests.nodes import V100
from tests.samples import sample

NODE = {**V100, "nics": 2}
SMALLER = {**NODE, "accelerators": 2}
FABRICS = [
    {"kind": "switch"},
    {"kind": "rail", "radix": 4, "nodes_per_pod": 2},
    {"kind": "fat_tree", "radix": 4, "oversubscription": [2.0, 1.0]},
    {"kind": "torus", "dims": [3, 2]},
]
TREES = FABRICS[:3]


def machine(fabric: object, degraded: bool = False) -> Cluster:
    made = topologies.cluster({"nodes": [4, 2], "node": [NODE, SMALLER], "fabric": fabric})
    above = next(vertex for vertex in made.graph["nic 4"] if "node" not in made.graph.nodes[vertex])
    return made.degraded([("gpu 0", "gpu 1", 0.5), (above, "nic 4", 0.25)]) if degraded else made


def groups(cluster: Cluster, size: int, count: int = 60) -> list[tuple[int, ...]]:
    """Random groups of ranks: of one server, of one place in each server, and in any order."""
    draw, gpus = random.Random(size), range(len(cluster.gpus))
    ordered = [tuple(range(first, first + size)) for first in range(len(gpus) - size)]
    strided = [tuple(range(first, first + 4 * size, 4)) for first in range(len(gpus) - 4 * size + 4)]
    return [*ordered, *strided, *(tuple(draw.sample(gpus, size)) for _ in range(count))]


def content(plan: TransferPlan, cluster: Cluster) -> object:
    """The content of a plan, except the order in which a flow lists its links."""
    return (
        plan.algorithm,
        plan.protocol,
        plan.sms,
        [
            (
                pytest.approx(phase.latency, rel=1e-12),
                phase.nbytes,
                [(sorted(zip(f.links, f.crossings, f.weights, strict=True)), f.alone, f.bound) for f in phase.flows],
            )
            for phase in plan.phases
        ],
    )


@pytest.mark.parametrize("kind_and_size", [("all_reduce", 3), ("all_reduce", 4), ("all_to_all", 3), ("broadcast", 6)])
@pytest.mark.parametrize("case", sample([(fabric, degraded) for fabric in FABRICS for degraded in (False, True)], 3))
def test_a_relabelled_plan_equals_a_new_one(case: tuple[object, bool], kind_and_size: tuple[str, int]) -> None:
    cluster, (kind, size) = machine(*case), kind_and_size
    shared = Communicator(cluster, cluster.gpus, nccl())
    for ranks in groups(cluster, size):
        alone = Communicator(cluster, cluster.gpus, nccl())
        assert content(shared.collective(kind, "dp", ranks, 1e6), cluster) == content(
            alone.collective(kind, "dp", ranks, 1e6), cluster
        )


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric["kind"])
def test_messages_and_copies_are_relabelled_too(fabric: object) -> None:
    cluster = machine(fabric, degraded=True)
    shared = Communicator(cluster, cluster.gpus, nccl())
    for sender in range(len(cluster.gpus)):
        for receiver in {(sender + step) % len(cluster.gpus) for step in (1, 3, 4, 8)}:
            alone = Communicator(cluster, cluster.gpus, nccl())
            assert content(shared.send(sender, receiver, 1e6), cluster) == content(
                alone.send(sender, receiver, 1e6), cluster
            )
            assert content(shared.copy(sender, 1e6, "host", "gpu"), cluster) == content(
                alone.copy(sender, 1e6, "host", "gpu"), cluster
            )


@pytest.mark.parametrize("degraded", [False, True])
@pytest.mark.parametrize("fabric", TREES, ids=lambda fabric: fabric["kind"])
def test_isomorphic_groups_have_the_same_servers_and_rings(fabric: object, degraded: bool) -> None:
    cluster = machine(fabric, degraded)
    for size in (2, 3, 4):
        every = np.array(groups(cluster, size, count=400))
        placement = Placements(cluster).of(every, lambda number: ((), ()))
        assert 1 < len(set(placement.patterns.tolist())) < len(every)
        known: dict[int, object] = {}
        for ranks, pattern in zip(every.tolist(), placement.patterns.tolist(), strict=True):
            group = group_of(cluster, [cluster.gpus[rank] for rank in ranks], reorders=True)
            assert known.setdefault(pattern, group) == group


def test_thousands_of_groups_have_few_isomorphism_classes() -> None:
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 320})
    tensor, data = np.arange(2560).reshape(320, 8), np.arange(2560).reshape(5, 64, 8).transpose(0, 2, 1).reshape(40, 64)
    placements = Placements(cluster)
    assert len(set(placements.of(tensor, lambda number: ((), ())).patterns.tolist())) == 1
    assert len(set(placements.of(data, lambda number: ((), ())).patterns.tolist())) <= 8 * 5


def test_equal_groups_are_placed_once_and_others_anew() -> None:
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 4})
    placements = Placements(cluster)
    tensor = np.arange(32).reshape(4, 8)
    first = placements.whole(tensor)
    assert placements.whole(tensor.copy()).slots is first.slots
    for other in (tensor[::-1], tensor.reshape(2, 16), tensor.T):
        slots, alone = placements.whole(other).slots, Placements(cluster).whole(other).slots
        assert np.array_equal(slots.of(1), alone.of(1))
        assert not np.array_equal(slots.of(1), first.slots.of(1))
