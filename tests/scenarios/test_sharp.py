"""SHARP: each node sends its vector once and receives the sum once; only switches of InfiniBand from HDR on add."""

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.library.nccl_tables import NVLS_SHARE
from clustersim.simulator.reading.errors import ScenarioError

NVLINKS = {"dgx_h100": "nvlink4", "dgx_b200": "nvlink5"}
SIZE = 2**30
A100 = {"preset": "dgx_a100_80gb", "nodes": 4, "fabric": {"kind": "fat_tree"}}
H100 = {**A100, "preset": "dgx_h100"}


def scenario(cluster=A100, size="1 GiB", algorithm="auto", engine="compiled", fold=True, **network):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": cluster,
            "collective": {"kind": "all_reduce", "size": size},
            "network": {**network, "algorithms": {"all_reduce": algorithm}},
            "simulation": {"engine": engine, "fold": fold},
        }
    )


def by_ends(timeline):
    """(kind of the source, kind of the target) -> bytes of each link that carries some, folding undone."""
    cluster, found = timeline.cluster, {}
    for number, nbytes in timeline.link_bytes.items():
        ends = tuple(name.rpartition(" ")[0] for name in cluster.ends[number])
        found.setdefault(ends, []).append(nbytes)
    return found


@pytest.mark.parametrize(
    ("cluster", "algorithm"), [(A100, "sharp"), (H100, "sharp"), (H100, "nvls_sharp")], ids=["A100", "H100", "NVLS"]
)
def test_every_node_sends_its_vector_once_and_every_leaf_too(cluster, algorithm):
    timeline = scenario(cluster, algorithm=algorithm, sharp=True, fold=False).run().timeline
    carried = by_ends(timeline)
    for ends in (("nic", "leaf"), ("leaf", "nic")):
        assert carried[ends] == pytest.approx([SIZE / 8] * 32)
    # the tree has one leaf of two nodes below each of two leaves; eight parts of the vector pass
    for ends in (("leaf", "spine"), ("spine", "leaf")):
        assert carried[ends] == pytest.approx([SIZE] * 2)


def test_nvls_carries_1_plus_1_over_p_of_the_vector_beside_sharp():
    timeline = scenario(H100, algorithm="nvls_sharp", sharp=True, fold=False).run().timeline
    carried = by_ends(timeline)
    for ends in (("gpu", "nvswitch"), ("nvswitch", "gpu")):
        assert carried[ends] == pytest.approx([SIZE * (1 + 1 / 8)] * 32)


@pytest.mark.parametrize(("preset", "network_bound"), [("dgx_b200", True), ("dgx_h100", False)])
def test_the_share_of_nvls_is_that_of_nvlink_and_rounds_cost_what_they_do_in_one_server(preset, network_bound):
    """Of two servers: a NIC of 50 GB/s passes an eighth of the vector, a GPU's NVLink 9/8 of it. A tree has 16 channels
    of Blackwell's 32, 8 of Hopper's 16, each with a chunk of 128 KiB for each of eight heads.
    """
    library, gib = nccl("2.30"), 2.0**30
    link = {"dgx_h100": 18 * 25e9, "dgx_b200": 18 * 50e9}[preset] * library.efficiency[NVLINKS[preset]]
    by_network = 8 * gib / 8 / (50e9 * library.efficiency["NET"])
    by_nvlink = 8 * gib * 9 / 8 / (link * NVLS_SHARE)
    assert (by_network > by_nvlink) == network_bound
    chunk = {"dgx_h100": 8, "dgx_b200": 16}[preset] * 2.0**17
    rounds = 8 * (8 * gib / 16 / chunk) * library.round_latency["nvls", "Simple"]
    cluster = {"preset": preset, "nodes": 2}
    eight, sixteen = (
        scenario(cluster, size=size, algorithm="nvls_tree").run().summary()["collective"][0]["time_s"]
        for size in ("8 GiB", "16 GiB")
    )
    assert sixteen - eight == pytest.approx(max(by_network, by_nvlink) + rounds, rel=1e-3)


def test_two_trees_carry_the_vector_twice_over_the_nics_of_inner_nodes():
    timeline = scenario({**H100, "nodes": 2}, algorithm="nvls_tree", fold=False).run().timeline
    assert by_ends(timeline)["nic", "leaf"] == pytest.approx([SIZE / 8] * 16)
    four = by_ends(scenario(H100, algorithm="nvls_tree", fold=False).run().timeline)["nic", "leaf"]
    assert sum(four) == pytest.approx(SIZE * 2 * 3)  # three edges of each tree, both ways, half of the vector each
    assert max(four) <= SIZE / 8 * 2


def test_thirty_two_gpus_of_an_nvlink_domain_own_a_part():
    """Two racks of 72: the others' NICs carry nothing, and no link between a GPU and the switches twice the vector."""
    racks = {"preset": "gb200_nvl72", "nodes": 2}
    carried = by_ends(scenario(racks, algorithm="nvls_tree", fold=False).run().timeline)
    assert carried["nic", "leaf"] == pytest.approx([SIZE / 32] * 64)
    assert max(carried["gpu", "nvswitch"]) == pytest.approx(SIZE * (1 + 1 / 32))
    assert min(carried["gpu", "nvswitch"]) == pytest.approx(SIZE)


def test_engines_agree_and_folding_is_exact():
    for algorithm, network in (("sharp", {"sharp": True}), ("nvls_sharp", {"sharp": True}), ("nvls_tree", {})):
        times = {
            scenario(H100, "64 MiB", algorithm, engine, fold, **network).run().timeline.makespan
            for engine in ("simpy", "compiled")
            for fold in (True, False)
        }
        assert max(times) == pytest.approx(min(times), rel=1e-9)


def test_sharp_is_chosen_if_the_switches_add_and_is_faster_than_rings_and_trees():
    plain, added = scenario().run().summary(), scenario(sharp=True).run().summary()
    assert plain["collective"][0]["algorithm"] == "ring"
    assert added["collective"][0]["algorithm"] == "sharp"
    assert 1.3 < plain["collective"][0]["time_s"] / added["collective"][0]["time_s"] < 2
    assert scenario(H100, sharp=True).run().summary()["collective"][0]["algorithm"] == "nvls_sharp"


def test_the_library_has_no_other_algorithms_by_default_but_nvls_tree_on_hopper():
    for cluster, added in ((A100, ()), (H100, ("nvls_tree",))):
        assert scenario(cluster).run().summary()["collective"][0]["algorithm"] in ("ring", "tree", *added)
        plain = scenario(cluster, nvls_tree=False).run().summary()
        assert plain["collective"][0]["algorithm"] in ("ring", "tree")


def test_the_latency_of_sharp_hardly_grows_with_the_nodes():
    few, many = (scenario({**A100, "nodes": nodes}, "8 B", sharp=True).run().timeline.makespan for nodes in (2, 32))
    assert many < few + 5e-6


def test_static_routes_take_the_same_cables_up_and_down():
    timeline = scenario(algorithm="sharp", sharp=True, routing="static", fold=False).run().timeline
    cluster = timeline.cluster
    carried = {cluster.ends[link]: timeline.link_bytes.get(link, 0.0) for link in cluster.cables}
    assert sum(carried.values()) == pytest.approx(2 * 2 * SIZE)  # two leaves, up and down
    assert all(nbytes == pytest.approx(carried[ends[::-1]]) for ends, nbytes in carried.items())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"cluster": {**A100, "node": {"nic": {"kind": "eth_200"}}}, "network": {"sharp": True}},
            "needs InfiniBand switches that add (ib_hdr, ib_ndr, ib_xdr), but nodes are joined by eth_200",
        ),
        ({"cluster": {"preset": "zhores", "nodes": 2}, "network": {"sharp": True}}, "nodes are joined by ib_edr"),
        ({"cluster": {"preset": "dgx_a100_80gb"}, "network": {"sharp": True}}, "but there is one node"),
        ({"network": {"sharp": True, "transport": "gloo"}}, "network.sharp: belongs to transport nccl"),
        (
            {"network": {"sharp": True, "routing": "ecmp"}},
            "network.sharp: needs InfiniBand, whose switches have no ecmp",
        ),
        ({"network": {"sharp": "yes please"}}, "network.sharp: must be true or false"),
    ],
    ids=["Ethernet", "EDR", "one node", "Gloo", "ECMP", "no flag"],
)
def test_wrong_switches_are_told(changes, told):
    data = {"version": 1, "cluster": A100, "collective": {"kind": "all_reduce", "size": "1 MB"}, **changes}
    with pytest.raises(ScenarioError) as error:
        Scenario.model_validate(data)
    assert told in str(error.value)


def test_an_algorithm_without_its_switches_is_told():
    with pytest.raises(ScenarioError, match=r"sharp needs GPUs of several servers, and network\.sharp: true; try auto"):
        scenario(algorithm="sharp").run()
    with pytest.raises(ScenarioError, match=r"nvls_tree needs GPUs of several servers behind switches of nvlink4"):
        scenario(algorithm="nvls_tree").run()
