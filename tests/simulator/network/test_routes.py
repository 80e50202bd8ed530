"""The load of a step on links: the class of each hop is that of its own route; streams of a pipeline are counted."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from random import Random

import pytest

from clustersim import topologies
from clustersim.simulator.network.candidates import GroupTopology
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.routes import hop_class, link_load
from clustersim.simulator.network.step import Step
from clustersim.simulator.network.transport import NET, NVLINK, PCI


@pytest.mark.parametrize(("preset", "kinds"), [("dgx1", {NVLINK, PCI, NET}), ("dgx_a100_80gb", {NVLINK, NET})])
def test_the_class_of_each_hop_is_that_of_its_route(preset: str, kinds: set[str]) -> None:
    cluster = topologies.cluster({"preset": preset, "nodes": 3})
    devices = cluster.gpus[1:11]
    transfers = tuple(permutations(range(len(devices)), 2))
    load = link_load(cluster, devices, Step(transfers, 1.0))
    found = [load.hops[number][1] for number in load.hop_of.tolist()]
    assert found == [hop_class(cluster, devices[sender], devices[receiver]) for sender, receiver in transfers]
    assert set(found) == kinds


def test_the_most_streams_of_a_position_are_those_that_a_search_counts() -> None:
    cluster, draw = topologies.cluster({"preset": "dgx1", "nodes": 1}), Random(0)
    topology = GroupTopology(cluster, cluster.gpus, nccl())
    for lanes in (1, 2, 3):
        transfers = tuple((draw.randrange(8), draw.randrange(8)) for _ in range(12))
        adds = tuple(draw.random() < 0.5 for _ in transfers)
        streams = defaultdict(set)
        for place, (transfer, reduces) in enumerate(zip(transfers, adds, strict=True)):
            for end, position in zip("sr", transfer, strict=True):
                streams[end, position].add((place // (12 // lanes), reduces))
        step = Step(transfers, 1.0, pipelined=True, lanes=lanes, reduces=adds)
        assert topology.most(step) == max(map(len, streams.values()))
