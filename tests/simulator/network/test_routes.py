"""The load of a step on links: the class of each hop is that of its own route; streams of a pipeline are counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import permutations
from random import Random

import numpy as np
import pytest

from clustersim import topologies
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.network.candidates import GroupTopology, Shares
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.plan import Flow
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
    ways = [cluster.route(devices[sender], devices[receiver]) for sender, receiver in transfers]
    assert load.paths() == [list(way) for way in ways], "those inside a server are found once for equal places"
    crossed = Counter(link for way in ways for link in way)
    assert dict(zip(load.links.tolist(), load.crossings.tolist(), strict=True)) == crossed
    seconds = np.arange(1.0, len(load.links) + 1)
    taken = dict(zip(load.links.tolist(), seconds.tolist(), strict=True))
    assert load.slowest(seconds).tolist() == [max(taken[link] for link in way) for way in ways]


def test_a_load_without_some_links_has_the_others_of_every_path() -> None:
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 3})
    devices = cluster.gpus[6:18]
    transfers = tuple(permutations(range(len(devices)), 2))
    load = link_load(cluster, devices, Step(transfers, 1.0))
    dropped = set(load.links.tolist()[::3])
    rest = load.without(dropped)
    assert rest.paths() == [[link for link in path if link not in dropped] for path in load.paths()]
    assert rest.links.tolist() == [link for link in load.links.tolist() if link not in dropped]
    assert rest.slowest(np.ones(len(rest.links))).min() == 0, "some paths have none left"


def told(flow: Flow) -> tuple[object, ...]:
    return (flow.links.tolist(), flow.crossings.tolist(), flow.weights.tolist(), flow.alone, flow.bound)


@pytest.mark.parametrize("routing", ["auto", "ecmp"])
@pytest.mark.parametrize("cables", [True, False])
def test_transfers_that_are_not_coupled_have_the_flows_that_each_has_alone(routing: str, cables: bool) -> None:
    cluster = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 3, "fabric": {"kind": "fat_tree"}},
            "collective": {"kind": "all_to_all", "size": "1 GB"},
            "network": {"routing": routing},
        }
    ).cluster()
    transport, transfers = nccl(), tuple(permutations(range(12), 2))
    topology = GroupTopology(cluster, cluster.gpus[::2], transport, cables=cables)
    flows = topology.flows(transport, Step(transfers, 1.0, coupled=False), Shares(0.9, 0.8), 60e9)
    limit = 60e9 / 11  # each position sends to eleven others
    alone = [topology.flows(transport, Step((one,), 1.0), Shares(0.9, 0.8), limit)[0] for one in transfers]
    assert list(map(told, flows)) == list(map(told, alone))
    shared = min(min(flow.crossings) for flow in flows)
    assert (shared < 1) == (routing == "ecmp" and cables), "queue pairs take paths of their own"


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
