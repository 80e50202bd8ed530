"""NCCL's buffers, chunks, shares and bandwidths against its source, whose lines in C are written again here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, log2

import pytest

from clustersim import topologies
from clustersim.simulator.network.candidates import GroupTopology
from clustersim.simulator.network.library.nccl import nccl, tuning_model
from clustersim.simulator.network.library.nccl_tables import (
    BUFFER_BYTES,
    CHUNK_BYTES,
    NET_CHUNK_BYTES,
    SWITCH_CHUNK_BYTES,
    VERSIONS,
    with_networks,
)
from clustersim.simulator.network.transport import PCI, GroupProperties

STEPS = 8
"""NCCL_STEPS (src/include/devcomm.h)."""

BUFFERS = {"LL": 512 * 2**10, "LL128": 4800 * 2**10, "Simple": 4 * 2**20}
"""NCCL_BUFFSIZE and its like, which `ncclCommDump` and NCCL_DEBUG=INFO print for x86: bytes for each channel."""

LEVELS = 7
"""Of a tree: the ranks of a server less one, and the logarithm of the servers."""

Halved = Callable[[float, float], float]
"""(bytes of a channel, or of a channel and head; the chunk of the buffer) -> the chunk that computeColl chooses."""


def halving(*rows: tuple[float, float]) -> Halved:
    """``while (nBytes / chunkSize < most && chunkSize > least) chunkSize /= 2`` for each (most, least)."""

    def halved(nbytes: float, chunk: float) -> float:
        for most, least in rows:
            while nbytes / chunk < most and chunk > least:
                chunk /= 2
        return chunk

    return halved


TREE = halving((LEVELS * 8, 131072), (LEVELS * 4, 65536), (LEVELS, 32768))
"""src/enqueue.cc, computeColl, v2.10.3: ``tree.depth * 8`` and so on."""

NVLS = halving((64, 65536), (8, 32768), (2, 16384))
"""The same, v2.18.5, from 128 KiB on."""

NVLS_TREE = halving((32, 262144), (16, 131072), (4, 65536), (1, 32768))


def sizes() -> Iterator[float]:
    """Bytes of a channel, from 1 KiB to 1 GiB, never at a threshold."""
    return (1.1 * 2.0 ** (place / 3) for place in range(30, 90))


def test_buffers_have_eight_slots_and_half_of_a_line_of_ll_is_its_flag() -> None:
    assert sum(BUFFERS.values()) == BUFFER_BYTES
    slots = {protocol: nbytes / STEPS for protocol, nbytes in BUFFERS.items()}
    for name in ("ring", "tree"):
        assert CHUNK_BYTES[name, "Simple"][0] == slots["Simple"]
        assert NET_CHUNK_BYTES[name, "LL"] == (slots["LL"] / 2,)
        assert NET_CHUNK_BYTES[name, "LL128"][0] == slots["LL128"] * 15 / 16
    # NCCL_P2P_NVL_CHUNKSIZE and NCCL_P2P_NET_CHUNKSIZE (src/init.cc)
    assert (CHUNK_BYTES["direct", "Simple"], NET_CHUNK_BYTES["direct", "Simple"]) == ((1 << 19,), (1 << 17,))
    # a round of a ring passes a rank's slots of ALLREDUCE_CHUNKSTEPS, half of NCCL_STEPS
    assert nccl().round_bytes["ring", "Simple"] == 4 * slots["Simple"]


def test_chunks_of_trees_are_halved_as_in_the_source() -> None:
    for nbytes in sizes():
        found = nccl("2.10").chunk("tree", "Simple", nbytes, 2 * LEVELS)
        assert found == min(nbytes, TREE(nbytes, BUFFERS["Simple"] / STEPS)), nbytes


def test_chunks_of_nvls_are_halved_as_in_the_source() -> None:
    """A lane here is what one of the GPUs owns, on all 16 channels."""
    for each in sizes():
        found = nccl("2.30").chunk("nvls", "Simple", 16 * each, 2, link="nvlink4")
        assert found == 16 * min(each, NVLS(each, 131072)), each


def test_chunks_of_nvls_trees_are_halved_as_in_the_source() -> None:
    """A lane is a tree of half of the 16 channels. Eight servers: four hops up and as many down."""
    library = with_networks(nccl("2.30"), sharp=False, nvls_tree=True)
    for each in sizes():
        found = library.chunk("nvls_tree", "Simple", 8 * each, 4)
        assert found == 8 * min(each, NVLS_TREE(each, 131072)), each
        # Amazon's plugin allows 512 KiB
        found = library.chunk("nvls_tree", "Simple", 8 * each, 4, nic="efa_400")
        assert found == 8 * min(each, NVLS_TREE(each, 524288)), each
    assert SWITCH_CHUNK_BYTES["nvls_tree", "Simple"][0] == 8 * 131072


@pytest.mark.parametrize("version", ["2.10", "2.30"])
def test_chunks_of_sharp_are_halved_as_in_the_source(version: str) -> None:
    """collnetDirect of depth 2, four hops there and back: ``depth * 64``, then 8, then 8 again."""
    halved = halving((2 * 64, 131072), (2 * 8, 65536), (2 * 8, 32768))
    library = with_networks(nccl(version), sharp=True, nvls_tree=False)
    for each in sizes():
        assert library.chunk("sharp", "Simple", each, 4) == min(each, halved(each, BUFFERS["Simple"] / STEPS)), each


def test_chunks_of_nvls_with_sharp_are_those_of_nvls() -> None:
    """A lane is what one GPU of a server owns, on half of the 16 channels; four hops there and back."""
    library = with_networks(nccl("2.30"), sharp=True, nvls_tree=False)
    for each in sizes():
        assert library.chunk("nvls_sharp", "Simple", 8 * each, 4) == 8 * min(each, NVLS(each, 131072)), each


def test_chunks_of_ll128_between_servers_are_halved_as_in_the_source() -> None:
    """v2.14.3: ``nstepsLL128 * 64 / ppn`` chunks down to 128 KiB, then 16 down to 32 KiB; 15 of 16 bytes are data."""
    for nodes, each in ((2, 8), (4, 8), (16, 4)):
        taken = (1 + int(log2(nodes)) + 0.1 * each) / each
        halved = halving((taken * 64, 131072), (taken * 16, 32768))
        for lines in sizes():
            data = lines * 15 / 16
            group = GroupProperties(nodes * each, nodes)
            found = nccl().chunk("tree", "LL128", data, group.tree_steps, net=True)
            assert found == pytest.approx(min(data, halved(lines, BUFFERS["LL128"] / STEPS) * 15 / 16))


def shares_of_source(version: str, algorithm: str, protocol: str, servers: int) -> float:
    """Data of an all-reduce over the bandwidth, without limits of channels: ncclTopoTuneModel's lines of ``busBw``."""
    bus = 1.0
    if algorithm == "ring":
        if protocol == "LL":
            bus *= {"2.5": 1.0 / 4.0, "2.10": 1.0 / 4.0, "2.30": 0.5}[version]
        if protocol == "LL128":
            bus *= 120.0 / 128.0 if version == "2.5" else 0.92
        return bus
    bus *= 0.9 if version == "2.5" else 0.92
    if protocol == "LL":
        bus = bus * 1.0 / (3.0 if version == "2.5" else 3.8)
    if protocol == "LL128":
        bus *= 7.0 / 9.0 if servers == 1 or version == "2.5" else 120.0 / 128.0
    return bus


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("servers", [1, 2, 8])
def test_shares_of_the_bandwidth_are_those_of_the_source(
    version: str, algorithm: str, protocol: str, servers: int
) -> None:
    expected = shares_of_source(version, algorithm, protocol, servers)
    found = tuning_model(version).share("all_reduce", algorithm, protocol, GroupProperties(8 * servers, servers))
    assert found == pytest.approx(expected)


def test_gathers_by_ll_have_a_share_of_their_own_in_one_server() -> None:
    """``nNodes > 1 || allReduce || reduce ? 1/4 : 1/3`` in v2.10.3; the same share as others before and after."""
    for version, inside, across in (("2.5", 1 / 4, 1 / 4), ("2.10", 1 / 3, 1 / 4), ("2.30", 1 / 2, 1 / 2)):
        for servers, share in ((1, inside), (2, across)):
            group = GroupProperties(8 * servers, servers)
            assert nccl(version).share("all_gather", "ring", "LL", group) == share
            assert nccl(version).share("reduce", "ring", "LL", group) == across


def test_rings_take_longer_on_their_plateau() -> None:
    """``nBytes >= nRanks / 16.0 * 65536``, v2.10.3: 1.9; 64 B for each rank and channel since then: 1.4; not in 2.5."""
    group = GroupProperties(64, 8)
    for version, begin, factor in (("2.10", 64 / 16 * 65536, 1.9), ("2.30", 64 * 16 * 64, 1.4), ("2.5", inf, 1.0)):
        model = tuning_model(version)
        for nbytes in (1.0, 2.0**15, 2.0**16, 2.0**18 - 1, 2.0**18, 2.0**30):
            expected = factor if nbytes >= begin else 1.0
            assert model.latency_factor("all_reduce", "ring", "Simple", nbytes, group) == expected
            assert model.latency_factor("all_reduce", "ring", "LL", nbytes, group) == 1.0
            assert model.latency_factor("all_gather", "ring", "Simple", nbytes, group) == 1.0


def test_hops_in_a_server_cost_more_beside_a_network_by_ll_in_one_version() -> None:
    """``intraLat *= 1.8`` for LL in v2.10.3 (nNodes > 1)."""
    for version, factor in (("2.5", 1.0), ("2.10", 1.8), ("2.30", 1.0)):
        model = tuning_model(version)
        for protocol, expected in (("LL", factor), ("LL128", 1.0), ("Simple", 1.0)):
            one, many = (model.message(0.0, PCI, "ring", protocol, GroupProperties(8 * n, n, PCI)) for n in (1, 2))
            assert many == pytest.approx(expected * one)


@pytest.mark.parametrize(
    ("preset", "gigabytes"),
    [("lumi", 36.0), ("mi300x_platform", 48.0), ("mi355x_platform", 48.0 / 64 * 76.8)],
)
def test_links_of_amds_gpus_carry_what_rccl_counts(preset: str, gigabytes: float) -> None:
    """MI200_XGMI_WIDTH and GFX94X_XGMI_WIDTH (ROCm/rccl, src/graph/topo.h); of the MI350 the share of the MI300."""
    cluster = topologies.cluster(preset)
    links = [link for link in cluster.links if link.kind.startswith("infinity_fabric") and "host" not in link.kind]
    link = min(links, key=lambda one: one.bandwidth)
    assert link.bandwidth * nccl().link_efficiency(link) == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("version", ["2.10", "2.30"])
def test_channels_limit_rings_and_trees_as_in_the_source(version: str, nodes: int) -> None:
    """``nChannels * perChMax...``: LL128 of rings 20 GB/s each on A100; trees 24.0, 23.6 and 17.8 by nodes."""
    group = GroupProperties(8 * nodes, nodes, link="nvlink3", rings=4)
    row = {1: 0, 2: 1, 4: 2}[nodes]
    model = tuning_model(version)
    # without the limit of the links
    assert model.ring_ceilings["ring", "LL128", "nvlink3"][row] == 20e9
    of_tree = (24.0e9, 23.6e9, 17.8e9)[row]
    assert model.ring_ceilings["tree", "Simple", "nvlink3"][row] == of_tree
    ratio = 7.0 / 9.0 if nodes == 1 else 120.0 / 128.0
    expected = min(4 * of_tree * ratio, 4 * 20e9)
    assert model.ring_ceilings["tree", "LL128", "nvlink3"][row] * 4 == pytest.approx(expected)
    assert model.ceiling("all_reduce", "ring", "LL128", group) == pytest.approx(80e9)


@pytest.mark.parametrize(
    ("kind", "nodes", "head"), [("nvlink4", 2, 57.7e9), ("nvlink4", 4, 45.5e9), ("nvlink5", 8, 80e9)]
)
def test_heads_limit_nvls_trees_as_in_the_source(kind: str, nodes: int, head: float) -> None:
    """``busBw = nChannels * min(..., perChMaxNVLSTreeBw)``, times nRanks / nsteps; the library's times have no such
    limit.
    """
    group = GroupProperties(8 * nodes, nodes, link=kind, switched=True)
    ranks, heads = 8 * nodes, 8
    vector_rate = heads * head * ranks / (2 * (ranks - 1))
    carried = 1 + 1 / heads  # of the vector, by the link of a GPU
    model = tuning_model("2.30")
    assert model.ceiling("all_reduce", "nvls_tree", "Simple", group) == pytest.approx(vector_rate * carried)
    assert not nccl("2.30").head_ceilings


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize(("protocol", "threads", "threshold"), [("LL", 512, 8), ("LL128", 640, 8), ("Simple", 512, 64)])
def test_small_vectors_open_fewer_channels_as_in_the_source(
    algorithm: str, protocol: str, threads: int, threshold: int
) -> None:
    """getAlgoInfo, v2.10.3: ``while (nBytes < nc * nt * threadThreshold) nc--``; the threshold of LL rings by rank."""
    ranks, most = 8, 24
    each = threads * threshold * (ranks if (algorithm, protocol) == ("ring", "LL") else 1)
    for nbytes in sizes():
        channels = most
        while nbytes < channels * each and channels >= 2:
            channels -= 1
        assert nccl("2.10").channels_used(algorithm, protocol, nbytes, ranks, most) == channels, nbytes


def test_algorithms_of_switches_need_their_switches() -> None:
    """Each is offered to all-reduces only where the network has it; the ways of NCCL without it stay."""
    cluster = topologies.cluster({"preset": "dgx_h100", "nodes": 2})
    plain = GroupTopology(cluster, cluster.gpus, nccl("2.30")).properties
    for sharp in (False, True):
        for nvls_tree in (False, True):
            library = with_networks(nccl("2.30"), sharp=sharp, nvls_tree=nvls_tree)
            model = library.tuning_model
            assert model is not None
            for one in (library, model):
                added = ["sharp", "nvls_sharp"] * sharp + ["nvls_tree"] * nvls_tree
                offered = one.algorithms["all_reduce"]
                assert offered == ("ring", "tree", "nvls", *added)
                usable = [name for name in offered if one.usable_protocols(name, plain)]
                assert usable == ["ring", "tree", *added]
