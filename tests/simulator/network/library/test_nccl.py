"""NCCL's constants against its source, its tuning model against NCCL's formulas, and its times against both."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import hypot
from pathlib import Path

import pytest

from clustersim import topologies
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.candidates import GroupTopology, candidate
from clustersim.simulator.network.collectives import ring, sharp, tree
from clustersim.simulator.network.library.calibration_file import transport
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.nccl import PCIE, nccl, tuning_model, version_for
from clustersim.simulator.network.library.nccl_tables import (
    LL_CEILINGS,
    RING_LL128,
    TREE,
    TREE_CORRECTION,
    TREE_LL128,
    VERSIONS,
    switch_hop_latency,
)
from clustersim.simulator.network.library.tuner import steps
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.network.step import Step
from clustersim.simulator.network.transport import NET, NVLINK, GroupProperties, Transport
from clustersim.topologies.uniform_and_tree import uniform

DATA = Path(__file__).parents[4] / "../shared/data"
PUBLISHED = Path(__file__).parents[4] / "scenarios/published"

NAMES = {"v2.5.6": "2.5", "v2.10.3": "2.10", "HEAD 2026-06 (5067397c)": "2.30"}


def table(name: str) -> list[dict[str, str]]:
    path = DATA / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"the published measurements are absent: {path.name}")
    with path.open() as file:
        return list(csv.DictReader(file))


def figures(row: dict[str, str]) -> tuple[float, ...]:
    return tuple(float(row[column]) for column in ("LL_or_N1", "LL128_or_N2", "Simple_or_N4_or_value"))


def test_latencies_are_those_of_the_source() -> None:
    compared = 0
    for row in table("nccl_tuning_constants"):
        name, tables = row["key"].lower(), VERSIONS[NAMES[row["nccl_version"]]]
        if name not in ("ring", "tree"):
            continue
        if row["table"] == "baseLatencies":
            assert tables.base[name] == figures(row)
        elif row["table"].startswith("hwLatencies"):
            assert tables.hop[row["table"].partition("/")[2]][name] == figures(row)
        else:
            continue
        compared += 1
    assert compared == 8 + 8 + 6


def test_latencies_of_switches_are_those_of_the_source() -> None:
    """A way through a network and back is two hops here, as one through NVSwitches; each has half of its latency."""
    names = {"CollNetDirect": "sharp", "NVLS": "nvls_sharp", "NVLSTree": "nvls_tree"}
    halves = {(NET, "sharp"), (NVLINK, "nvls_sharp"), (NET, "nvls_sharp"), (NVLINK, "nvls_tree")}
    found = {(hop, name): 1e6 * us for (hop, name, _), us in switch_hop_latency("2.30").items()}
    for row in table("nccl_tuning_constants"):
        hop = row["table"].removeprefix("hwLatencies/")
        if row["key"] in names and hop != row["table"] and figures(row)[2]:
            place = hop, names[row["key"]]
            assert found.pop(place) == pytest.approx(figures(row)[2] / (1 + (place in halves)))
    assert not found


def test_ceilings_and_corrections_are_those_of_the_source() -> None:
    rows = table("nccl_tuning_constants")
    factors = [figures(row) for row in rows if row["table"] == "treeCorrectionFactor"]
    printed = list(zip(*(TREE_CORRECTION["tree", protocol] for protocol in nccl().protocols), strict=True))
    # the last entry in the source is never used: logSize < 23
    assert factors[:23] == printed
    volta, ampere, hopper, blackwell = (figures(row) for row in rows if row["table"] == "llMaxBws")
    limits = {where: limit / 1e9 for (_, _, where), limit in LL_CEILINGS.items()}
    assert [limits[f"nvlink{n}"] for n in (2, 3, 4, 5)] == [volta[0], ampere[0], hopper[0], blackwell[0]]
    assert [limits[f"{v} {n}"] for v in ("intel", "amd") for n in (2, 4)] == [*volta[1:], *ampere[1:]]


def test_limits_of_channels_are_those_of_the_source() -> None:
    generations = dict(zip(("Volta", "Ampere", "Hopper", "Blackwell"), RING_LL128, strict=True))
    tables = {"perChMaxRingLL128Bws": RING_LL128, "perChMaxTreeLL128Bws": TREE_LL128, "perChMaxTreeBws": TREE}
    rows = [row for row in table("nccl_tuning_constants") if row["table"] in tables]
    assert len(rows) == 12
    for row in rows:
        assert tables[row["table"]][generations[row["key"]]] == figures(row)


def test_bandwidths_are_those_of_the_source() -> None:
    widths = {
        row["key"]: float(row["Simple_or_N4_or_value"])
        for row in table("nccl_tuning_constants")
        if row["table"].startswith("topo.h")
    }
    assert VERSIONS["2.30"].nvlink * 25 == widths["SM70_NVLINK_BW"] == widths["SM80_NVLINK_BW"]
    assert PCIE["pcie3"] == widths["PCI_BW"] * 1e9
    assert tuning_model("2.10").efficiency["NET"] == widths["NET_BW"] / 12.5


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_latency_in_a_server_is_that_of_the_tuning_model(version: str, protocol: str) -> None:
    """Ring: base + 2 (n - 1) hops. Tree: base + 2 (n - 1) of its own hops. NCCL's figures include the wire."""
    model = tuning_model(version)
    cluster = topologies.cluster("dgx_a100_80gb")
    topology = GroupTopology(cluster, cluster.gpus, model)
    column = ("LL", "LL128", "Simple").index(protocol)
    for name, build in (("ring", ring.all_reduce), ("tree", tree.all_reduce)):
        found = candidate(model, topology, "all_reduce", name, protocol, build(topology.group, 1e6), 1e6)
        base, hop = VERSIONS[version].base[name][column] * 1e-6, VERSIONS[version].hop[NVLINK][name][column] * 1e-6
        assert found.base == pytest.approx(base)
        assert sum(one.latency for one in found.placed) == pytest.approx(14 * hop)


@pytest.mark.parametrize(("version", "inside", "across"), [("2.10", 4.0, 10.7), ("2.30", 3.7, 31.0)])
def test_latency_of_collnet_is_that_of_the_tuning_model(version: str, inside: float, across: float) -> None:
    """To the head of the server, through the fabric, and back: 2 intraLat + interLat (ncclTopoTuneModel).

    us: hwLat of CollNet, Simple, and hwLatencies of CollNetDirect in src/graph/tuning.cc.
    """
    model = tuning_model(version)
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 4})
    topology = GroupTopology(cluster, cluster.gpus, model)
    found = candidate(model, topology, "all_reduce", "sharp", "Simple", sharp.all_reduce(topology.group, 1e6), 1e6)
    assert sum(one.latency for one in found.placed) == pytest.approx((2 * inside + across) * 1e-6)


def seconds(cluster: Cluster, ranks: int, nbytes: float, version: str = "2.10") -> float:
    plan = Communicator(cluster, cluster.gpus, nccl(version), "alpha_beta").collective(
        "all_reduce", "dp", tuple(range(ranks)), nbytes
    )
    return sum(phase.latency for phase in plan.phases)


def test_nccl_chooses_by_its_tuning_model_even_where_that_is_wrong() -> None:
    """Eight V100 send 12 MiB by LL128, as NCCL's tables advise; where that ends, vTrain's sweep falls by 58 us."""
    cluster = topologies.cluster("dgx1")

    def plan(transport: Transport, nbytes: float) -> TransferPlan:
        return Communicator(cluster, cluster.gpus, transport).collective("all_reduce", "dp", tuple(range(8)), nbytes)

    for size in range(10, 31):
        predicted, taken = plan(tuning_model("2.10"), 2.0**size), plan(nccl(), 2.0**size)
        assert (predicted.algorithm, predicted.protocol) == (taken.algorithm, taken.protocol)
    taken, best = plan(nccl(), 12 * 2.0**20), plan(replace(nccl(), tuning_model=None), 12 * 2.0**20)
    assert (taken.protocol, best.protocol) == ("LL128", "Simple")
    assert best.alone < 0.95 * taken.alone


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_large_vectors_on_v100_are_limited_by_links_and_on_a100_by_channels(ranks: int) -> None:
    """If links are the limit, rings share them fully. If channels are, the first slice of a chunk is sent alone."""
    transport, rounds = nccl(), 2 * (ranks - 1)
    for preset, allowed in (("dgx1", None), ("dgx_a100_80gb", transport.limits["nvlink3"])):
        cluster = topologies.cluster(preset)
        links = {2: 1, 4: 4, 8: 6}[ranks] * 25e9 * transport.efficiency[NVLINK]
        busbw = rounds / ranks * 2**40 / seconds(cluster, ranks, 2**40)
        assert busbw == pytest.approx(allowed * rounds / (rounds + 0.5) if allowed else links, rel=1e-3)


def test_four_servers_are_near_the_measured_if_they_have_800_gbit() -> None:
    """The table does not describe the cluster; 92 GB/s fits four HDR NICs on each server. From 1 GiB within 5 %."""
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 4, "node": {"nics": 4}})
    with (PUBLISHED / "nccl_measured.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["nodes"] == "4" and float(row["size_bytes"]) >= 2**30]
    assert len(rows) == 5
    for row in rows:
        measured = float(row["time_us"]) * 1e-6
        assert seconds(cluster, 32, float(row["size_bytes"])) == pytest.approx(measured, rel=0.05)


def test_small_vectors_open_few_channels() -> None:
    """Each LL thread should have 8 B of every rank's part. So 256 KiB among 8 ranks open 8 of 24 channels."""
    cluster = topologies.cluster("dgx_a100_80gb")
    communicator = Communicator(cluster, cluster.gpus, nccl())
    for kib, channels in ((16, 1), (32, 1), (256, 8), (512, 16), (2**20, 24)):
        plan = communicator.collective("all_reduce", "dp", tuple(range(8)), kib * 2.0**10)
        assert plan.sms == pytest.approx(channels / 108), kib


def test_a_message_between_servers_pays_launch_and_library() -> None:
    """v2.10.3, Simple: 8.4 us once and 9.6 us for the network, which include the wire unless it is longer."""
    once = nccl().launch + nccl().handover
    cluster = topologies.cluster({"preset": "zhores", "nodes": 2})
    plan = Communicator(cluster, cluster.gpus, nccl()).send(0, 4, 1.0)
    assert cluster.latency(cluster.route("gpu 0", "gpu 4")) < 9.6e-6
    assert plan.phases[0].latency + plan.delivery == pytest.approx(once + 18.0e-6)
    inside = Communicator(cluster, cluster.gpus, nccl()).send(0, 1, 1.0)
    assert inside.phases[0].latency + inside.delivery == pytest.approx(once + 11.8e-6)
    far = uniform(2, 10e9, 50e-6)
    plan = Communicator(far, far.gpus, nccl()).send(0, 1, 1.0)
    assert plan.phases[0].latency == pytest.approx(once + 8.4e-6)
    assert plan.delivery == far.latency(far.route(*far.gpus))


def test_ll128_fills_less_where_one_gpu_sends_and_receives_through_its_nic() -> None:
    """``ppn < 2 ? 0.7 : 0.92``, v2.10.3; later versions lack this case."""
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 4})
    lone, pairs = (
        GroupTopology(cluster, devices, nccl()).properties for devices in (cluster.gpus[::8], cluster.gpus[::4])
    )
    for version, share in (("2.10", 0.7), ("2.30", 0.92)):
        assert nccl(version).share("all_reduce", "ring", "LL128", lone) == share
        assert nccl(version).share("all_reduce", "ring", "LL128", pairs) == 0.92


def test_the_nic_that_four_gpus_share_limits_zhores() -> None:
    """100 GPUs, EDR: NCCL gets its share of a port; the bus cannot carry more."""
    cluster = topologies.cluster({"preset": "zhores", "nodes": 25})
    busbw = 2 * 99 / 100 * 1e9 / seconds(cluster, 100, 1e9)
    assert 10e9 < busbw < 12.5e9 * nccl().efficiency["NET"]


def test_without_nvlinks_and_nics_it_still_works() -> None:
    """A crossbar of ports: one ring, the network's share of its bandwidth."""
    cluster = uniform(4, 10e9, 1e-6)
    expected = 1.5 * 1e9 / (10e9 * nccl().efficiency["NET"])
    assert seconds(cluster, 4, 1e9) == pytest.approx(expected, rel=0.001)


def test_a_chain_of_nccl_passes_on_slots_of_its_buffer() -> None:
    """Slots of 512 KiB whatever the vector: 256 KiB pass each rank at once, 1 GiB in 2,048 of them."""
    for nbytes, slots in ((2.0**18, 0.5), (2.0**30, 2048)):
        times = []
        for ranks in (8, 128):
            cluster = uniform(ranks, 10e9, 0.0)
            transport = replace(nccl(), tuning_model=None, protocols=("Simple",), hop_latency={}, blocks=1)
            communicator = Communicator(cluster, cluster.gpus, transport)
            plan = communicator.collective("broadcast", "dp", tuple(range(ranks)), nbytes)
            assert (plan.algorithm, plan.protocol) == ("ring", "Simple")
            times.append(plan.alone - transport.base("ring", "Simple"))
        chunk = times[0] / (7 + max(slots, 1) - 1)
        assert times[1] == pytest.approx(chunk * (127 + max(slots, 1) - 1))


def test_chunks_in_the_switch_fill_two_hops_and_a_copy_and_wait_each_round() -> None:
    """Eight H100, closed form: 16 channels pass 16 KiB each for every GPU, from 8 MiB on 32 KiB, and so on."""
    cluster, library = topologies.cluster("dgx_h100"), replace(nccl("2.30"), handover=0.0)
    communicator = Communicator(cluster, cluster.gpus, library, "alpha_beta")
    rate = 18 * 20.6e9 * library.shares["nvls", "Simple", False]
    once = library.launch + library.base_latency["nvls", "Simple"]
    for size, chunk in ((2**22, 2**14), (2**25, 2**15), (2**28, 2**16), (2**32, 2**17)):
        # a link carries a rank's vector and its own part of the sum
        busy, whole = 9 / 8 * size / rate, 16 * chunk
        rounds = size / 8 / whole
        expected = once + busy + 2 * busy / rounds + rounds * 8 * library.round_latency["nvls", "Simple"]
        plan = communicator.collective("all_reduce", "dp", tuple(range(8)), float(size), algorithm="nvls")
        assert plan.alone == pytest.approx(expected, rel=0.02), size


def test_clusters_have_the_first_version_that_knows_their_gpus() -> None:
    assert version_for(["nvlink3", "ib_hdr"]) == "2.10"
    assert version_for(["nvlink4", "ib_ndr"]) == "2.30"
    assert transport("nccl", topologies.cluster("dgx_h100")).version == "2.30"
    assert transport("nccl", topologies.cluster("dgx_a100_80gb")).version == transport("nccl").version == "2.10"


def test_amazons_fabric_takes_its_own_latency_where_it_is_longer() -> None:
    """15.5 us from NIC to NIC (AWS, first EFA), where NCCL's own hop of LL over a network takes 2.7 us."""
    cluster = topologies.cluster({"preset": "p4d_24xlarge", "nodes": 2})
    wire = cluster.latency(cluster.route("gpu 0", "gpu 8"))
    assert 15e-6 < wire < 18e-6
    assert nccl().message(wire, NET, "ring", "LL", GroupProperties(2, 2)) == wire


def test_amazons_first_fabric_reads_what_is_larger_than_a_packet() -> None:
    """A request, the read and its answer; the second generation writes at once."""
    groups = [GroupProperties(16, 2, nic=nic) for nic in ("efa_100", "efa_100_v2", "ib_hdr")]
    found = [nccl("2.30").message(15e-6, NET, "tree", "Simple", group) for group in groups]
    assert found == pytest.approx([14e-6 + 3 * 15e-6, 14e-6 + 20e-6, 15e-6])


def test_blackwell_cuts_nvls_for_24_channels_and_hopper_for_16() -> None:
    """64 KiB for each channel and GPU from 8 of them each on: from 64 and from 96 MiB on eight GPUs; below, 32 KiB."""
    library, found = nccl("2.30"), {}
    for link, mebibytes in (("nvlink4", 63), ("nvlink4", 64), ("nvlink5", 95), ("nvlink5", 96)):
        found[mebibytes] = library.chunk("nvls", "Simple", mebibytes * 2.0**20 / 8, 2, link=link)
    each = {63: 16 * 2.0**15, 64: 16 * 2.0**16, 95: 24 * 2.0**15, 96: 24 * 2.0**16}
    assert found == each


def test_trees_pass_on_whole_slots_with_newer_releases() -> None:
    """1 MiB for each channel, eight GPUs on each of two servers; Amazon's plugin doubles the slots."""
    older, newer = nccl("2.10"), nccl("2.30")
    assert older.chunk("tree", "Simple", 2.0**20, 16) == 2**16
    assert newer.chunk("tree", "Simple", 2.0**20, 16) == 2**19
    assert newer.chunk("tree", "Simple", 2.0**20, 16, nic="efa_100") == 2**20


def test_posts_of_chunks_to_amazons_fabric_add_up() -> None:
    """A tree by LL128 over two p5.48xlarge, 16 MiB: each of 16 channels passes 1 MiB in chunks of 70 KiB. A GPU posts
    those of two channels, on their way up and down, in 2 us each by an EPYC.
    """
    cluster = topologies.cluster({"preset": "p5_48xlarge", "nodes": 2})
    free = replace(nccl("2.30"), net_overhead={})
    times = [
        Communicator(cluster, cluster.gpus, replace(library, tuning_model=None, protocols=("LL128",)))
        .collective("all_reduce", "dp", tuple(range(16)), 2.0**24, algorithm="tree")
        .alone
        for library in (nccl("2.30"), free)
    ]
    assert times[0] - times[1] == pytest.approx(2 * 2 * 2**20 / 72000 * 2e-6)


def test_measured_latencies_of_a100_are_those_of_newer_releases() -> None:
    older, newer = nccl("2.10"), nccl("2.30")
    group = GroupProperties(8, 1, NVLINK, "nvlink3")
    assert newer.start_latency == older.start_latency
    for library, same in ((older, True), (newer, False)):
        assert (library.base("ring", "LL", "nvlink3") == library.base("ring", "LL")) is same
        hop = library.message(0.0, NVLINK, "ring", "LL", group)
        assert (hop == library.hop_latency[NVLINK, "ring", "LL"]) is same


@pytest.mark.parametrize(("nodes", "seconds_measured"), [(3, 64.8e-3), (4, 70.3e-3)])
def test_amazons_first_fabric_passes_three_fifths_of_its_ports(nodes: int, seconds_measured: float) -> None:
    """1 GiB on p4d.24xlarge by nccl-tests (NVIDIA/nccl, issue 527); other networks pass nine tenths."""
    cluster = topologies.cluster({"preset": "p4d_24xlarge", "nodes": nodes})
    assert seconds(cluster, 8 * nodes, 2.0**30) == pytest.approx(seconds_measured, rel=0.05)


@pytest.mark.parametrize(
    ("preset", "version", "ranks"), [("dgx_a100_80gb", "2.10", 8), ("dgx_h100", "2.30", 4), ("dgx_b200", "2.30", 2)]
)
@pytest.mark.parametrize("nbytes", [2.0**23, 2.0**30])
def test_grouped_sends_copy_their_own_block_and_what_fills_their_buffers(
    preset: str, version: str, ranks: int, nbytes: float
) -> None:
    """32 channels of 512 KiB: of a vector 16 MiB are copied out after they came, or all of it."""
    cluster, library = topologies.cluster(preset), replace(nccl(version), handover=0.0)
    topology = GroupTopology(cluster, cluster.gpus[:ranks], library)
    taken = steps("direct", "all_to_all", topology.group, nbytes, 0)
    found = candidate(library, topology, "all_to_all", "direct", "Simple", taken, nbytes)
    of_gpu = cluster.links[cluster.route(*cluster.gpus[:2])[0]]
    kind, bandwidth = of_gpu.kind, of_gpu.bandwidth
    group = GroupProperties(ranks, 1, NVLINK, kind)
    once = library.base("direct", "Simple", kind) + library.message(0.0, NVLINK, "direct", "Simple", group)
    rate = bandwidth * library.efficiency.get(kind, library.efficiency[NVLINK]) * library.grouped_share
    sent, own = nbytes * (1 - 1 / ranks), nbytes / ranks
    copied = own + min(sent, 2.0**24)
    expected = once + sent / rate + copied / library.copy_rate["direct", "Simple", kind]
    assert found.seconds == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("rates", [{}, nccl("2.30").copy_rate])
def test_signals_of_an_all_to_all_carry_nothing_that_is_copied(rates: dict[tuple[str, str, str], float]) -> None:
    cluster, library = topologies.cluster("dgx_h100"), replace(nccl("2.30"), copy_rate=rates)
    topology, signals = GroupTopology(cluster, cluster.gpus[:2], library), [Step(((0, 1), (1, 0)), 0.0)]
    group = GroupProperties(2, 1, NVLINK, "nvlink4")
    once = library.base("direct", "Simple", "nvlink4") + library.message(0.0, NVLINK, "direct", "Simple", group)
    found = candidate(library, topology, "all_to_all", "direct", "Simple", signals, 0.0)
    assert found.seconds == pytest.approx(once)


def test_the_largest_own_block_of_an_unequal_all_to_all_is_copied() -> None:
    """Blocks of 1 and 3 parts among two: as much as is sent is copied, and no buffer is filled twice."""
    cluster, library = topologies.cluster("dgx_h100"), replace(nccl("2.30"), handover=0.0)
    communicator = Communicator(cluster, cluster.gpus, library)
    part, copies = 2.0**26, library.copy_rate["direct", "Simple", "nvlink4"]
    one, three = (
        communicator.collective("all_to_all", "ep", (0, 1), 4 * part, per_peer=sizes).alone
        for sizes in ((part, part), (part, 3 * part))
    )
    rate = 450e9 * library.efficiency["nvlink4"] * library.grouped_share
    assert three - one == pytest.approx(2 * part * (1 / rate + 1 / copies))


def test_lines_of_ll_pass_on_while_more_come() -> None:
    """Eight H100, reduce-scatter: a round takes the root of the squares of a hop and of its bytes."""
    library = replace(nccl("2.30"), handover=0.0, message_bytes={}, crowding={})
    library = replace(library, tuning_model=None, protocols=("LL",))
    cluster = topologies.cluster("dgx_h100")
    communicator = Communicator(cluster, cluster.gpus, library)
    hop = library.hop_latency["nvlink4", "ring", "LL"]
    start = library.launch + library.start_latency["nvlink4", "ring", "LL"]
    rate = library.ceilings["any", "LL", "nvlink4"] * 7 / 7.5
    for nbytes in (2.0**16, 2.0**24):
        plan = communicator.collective("reduce_scatter", "dp", tuple(range(8)), nbytes, algorithm="ring")
        busy = nbytes / 8 / rate
        assert plan.alone == pytest.approx(start + 7 * hypot(hop, busy), rel=1e-3)


@pytest.mark.parametrize(
    ("ranks", "processor", "share"),
    [(2, "epyc_7763", 5 / 6), (4, "epyc_7763", 15.3 / 24), (2, "xeon_platinum_8358", 15.3 / 24)],
)
def test_gpus_behind_a_host_write_to_each_other_only_in_pairs_on_amd(ranks: int, processor: str, share: float) -> None:
    """PCIe 4: NCCL's 24 GB/s, less the share of small packets, or of both ways through the memory of the host."""
    node = {"accelerator": "l40s", "processor": {"preset": processor, "memory": "512 GiB"}}
    cluster = topologies.cluster({"preset": "rtx_4090_workstation", "node": node})
    plan = Communicator(cluster, cluster.gpus, nccl("2.30")).collective(
        "all_reduce", "dp", tuple(range(ranks)), 2.0**32
    )
    assert 2 * (ranks - 1) / ranks * 2**32 / plan.alone == pytest.approx(24e9 * share, rel=0.01)
