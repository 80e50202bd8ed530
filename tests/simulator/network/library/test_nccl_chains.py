"""Broadcasts of NCCL around rings of many servers: what fills them, and how NCCL judges them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from clustersim import topologies
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.nccl import nccl, tuning_model
from clustersim.simulator.network.library.nccl_tables import NET_CHUNK_BYTES, VERSIONS
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.network.transport import NET, NVLINK, GroupProperties
from clustersim.topologies.uniform_and_tree import uniform


def roce(nodes: int, nics: int = 4) -> Cluster:
    """Servers of eight A100, two on each of four PCIe switches, and NICs of 100 Gb/s."""
    return topologies.cluster(
        {"preset": "dgx_a100_80gb", "nodes": nodes, "node": {"nics": nics, "nic": {"kind": "eth_100"}}}
    )


def broadcast(cluster: Cluster, ranks: range, nbytes: float) -> TransferPlan:
    return Communicator(cluster, cluster.gpus, nccl()).collective("broadcast", "dp", tuple(ranks), nbytes)


def test_each_server_delays_a_broadcast_by_a_slot_of_both_channels_of_its_nic() -> None:
    """LL128: lines pass GPUs one by one, but a NIC sends a slot of 562.5 KiB when it is full."""
    plans = {nodes: broadcast(roce(nodes), range(8 * nodes), 100e6) for nodes in (32, 64, 128)}
    library = nccl()
    hops = 7 * library.hop_latency[NVLINK, "ring", "LL128"] + library.hop_latency[NET, "ring", "LL128"]
    rate = 12.5e9 * library.efficiency[NET] * library.share("broadcast", "ring", "LL128", GroupProperties(256, 32))
    slot = 2 * NET_CHUNK_BYTES["ring", "LL128"][0] / rate
    assert 2 * NET_CHUNK_BYTES["ring", "LL128"][0] == 2 * 562.5 * 2**10
    for few, many in pairwise(plans):
        assert plans[many].protocol == "LL128"
        each = (plans[many].alone - plans[few].alone) / (many - few)
        assert each == pytest.approx(hops + slot, rel=0.01)


def test_a_slot_no_longer_than_the_message_delays_it() -> None:
    """24 KB on one ring of four fill no slot of LL: they wait for their own bytes."""
    plans = [broadcast(roce(nodes), range(8 * nodes), 24e3) for nodes in (32, 64)]
    library = nccl()
    inside = library.hop_latency[NVLINK, "ring", "LL"] * library.intra_node_penalty["LL"]
    share = library.share("broadcast", "ring", "LL", GroupProperties(256, 32))
    each = 7 * inside + library.hop_latency[NET, "ring", "LL"] + 24e3 / 4 / (12.5e9 * library.efficiency[NET] * share)
    assert (plans[1].alone - plans[0].alone) / 32 == pytest.approx(each, rel=0.2)


def test_rings_whose_last_gpu_is_far_from_the_nic_do_not_use_ll128() -> None:
    """Every other GPU: one beside each NIC, so a ring leaves by a GPU that reaches its NIC through another."""
    cluster = roce(64)
    assert broadcast(cluster, range(512), 50e6).protocol == "LL128"
    every_other = Communicator(cluster, cluster.gpus, nccl()).collective(
        "broadcast", "dp", tuple(range(0, 512, 2)), 50e6
    )
    assert every_other.protocol == "LL"
    hopper = topologies.cluster({"preset": "dgx_h100", "nodes": 64})
    plan = Communicator(hopper, hopper.gpus, nccl("2.30")).collective("broadcast", "dp", tuple(range(0, 512, 2)), 50e6)
    assert plan.protocol == "LL128"


@pytest.mark.parametrize("version", VERSIONS)
def test_nccl_judges_chains_by_ranks_unless_all_rings_are_equal(version: str) -> None:
    """ncclTopoTuneModel: ``sameChannels`` one hop, else nRanks hops, by Simple those of a tree."""
    model, tables = tuning_model(version), VERSIONS[version]
    across = GroupProperties(1024, 128, link="nvlink3", rings=4)
    lone = GroupProperties(1024, 128, link="nvlink3", rings=1)
    inside = GroupProperties(8, 1, link="nvlink3", rings=12, switched=True)
    ll, _, simple = (1e-6 * us for us in tables.hop[NET]["ring"])
    assert model.chain_estimate("ring", "LL", across) == pytest.approx(1024 * ll)
    assert model.chain_estimate("ring", "Simple", across) == pytest.approx(1024e-6 * tables.hop[NET]["tree"][2])
    assert model.chain_estimate("ring", "Simple", lone) == pytest.approx(simple)
    assert model.chain_estimate("ring", "Simple", inside) == pytest.approx(1e-6 * tables.hop[NVLINK]["ring"][2])


def test_trees_by_ll128_cut_their_slots_where_servers_are_few() -> None:
    """computeColl on four servers of eight: 30.4 chunks down to 76,800 B of lines, then 7.6 down to 19,200 B."""
    library, steps = nccl(), GroupProperties(32, 4).tree_steps
    assert steps == pytest.approx((1 + 2 + 0.8) / 8)
    assert library.chunk("tree", "LL128", 2**21 / 8, steps, net=True) == 19200 * 15 / 16
    assert library.chunk("tree", "LL128", 2**30 / 8, steps, net=True) == 614400 * 15 / 16
    assert library.chunk("tree", "LL128", 1e4, steps, net=True) == 1e4


def test_rings_wait_for_their_chunks_over_links_of_long_delay() -> None:
    """Both channels pass on 4 MiB in two slices. At 1 Gb/s a round takes the time of one slice and 50 ms."""
    cluster, nbytes = uniform(4, 125e6, 50e-3), 1.024e9
    library = replace(nccl(), efficiency={**nccl().efficiency, NET: 1.0})
    plan = Communicator(cluster, cluster.gpus, library).collective("all_reduce", "dp", tuple(range(4)), nbytes)
    assert plan.protocol == "Simple"
    each = (
        2**21 / 125e6 + cluster.latency(cluster.route(*cluster.gpus[:2])) + library.hop_latency[NET, "ring", "Simple"]
    )
    assert plan.alone == pytest.approx(1.5 * nbytes / 2**22 * each, rel=0.01)
