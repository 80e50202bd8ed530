"""The matrix of ``nvidia-smi topo -m`` of several kinds of servers, converted to nodes."""

import json

import pytest

from clustersim import topologies
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.topologies.inventory import SWITCH, graph, section
from clustersim.topologies.inventory_files import is_nvidia_smi, read_nvidia_smi
from clustersim.topologies.nodes.hybrid_cube_mesh import DOUBLE, SINGLE


def matrix(gpus, nics, joint, affinity):
    """The printed matrix. *joint* (one, other): the entry for words like GPU0. *affinity*: of each GPU."""
    words = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    lines = ["\t" + "\t".join(words) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for one in words:
        cells = [" X " if one == other else joint(one, other) for other in words]
        ends = [affinity(one), "0", "N/A"] if one.startswith("GPU") else []
        lines.append("\t".join([one, *cells, *ends]))
    legend = ["", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing a bonded set of # NVLinks"]
    return "\n".join([*lines, *legend]) + "\n"


def number(word):
    return int(word[3:])


def hgx(one, other):
    """Eight GPUs behind NVSwitches, each with a NIC below the same PCIe switch; the ninth NIC is for storage."""
    if one.startswith("GPU") and other.startswith("GPU"):
        return "NV18"
    if number(one) == number(other):
        return "PIX"
    same = number(one) % 8 // 4 == number(other) % 8 // 4
    return "NODE" if same else "SYS"


def dgx1(one, other):
    """Eight V100, two below each PCIe switch with one NIC."""
    if one.startswith("GPU") and other.startswith("GPU"):
        pair = tuple(sorted((number(one), number(other))))
        return "NV1" if pair in SINGLE else "NV2" if pair in DOUBLE else "SYS"
    place = {word: number(word) // 2 if word.startswith("GPU") else number(word) for word in (one, other)}
    if place[one] == place[other]:
        return "PIX"
    return "NODE" if place[one] // 2 == place[other] // 2 else "SYS"


def halves(word):
    return "0-27,56-83" if number(word) < 4 else "28-55,84-111"


def test_eight_gpus_behind_nvswitches():
    text = matrix(8, 9, hgx, halves)
    assert is_nvidia_smi(text)
    node = section(read_nvidia_smi(text, "topo.txt"), 4, accelerator="h100", nic="ib_ndr")
    assert node == {
        "nodes": 4,
        "node": {
            "accelerator": "h100",
            "accelerators": 8,
            "intra": {"kind": "nvlink4", "shape": "switch"},
            "sockets": 2,
            "pcie_switches": 8,
            "nics": 8,
            "nic": {"kind": "ib_ndr"},
        },
    }
    cluster = topologies.cluster(node)
    assert len(cluster.gpus) == 32
    kinds = [cluster.links[link].kind for link in cluster.route("gpu 5", "gpu 13")]
    assert kinds[:3] == ["pcie5", "pcie5", "ib_ndr"]


def test_a_hybrid_cube_mesh():
    node = section(read_nvidia_smi(matrix(8, 4, dgx1, halves), "topo.txt"), accelerator="v100_32gb", nic="ib_edr")
    assert node["node"]["intra"] == {"kind": "nvlink2", "shape": "hybrid_cube_mesh"}
    assert (node["node"]["pcie_switches"], node["node"]["nics"]) == (4, 4)
    assert len(topologies.cluster(node).gpus) == 8


def test_a_full_mesh_without_nics():
    node = section(read_nvidia_smi(matrix(4, 0, lambda *_: "NV4", lambda _: "0-63"), "t"), accelerator="a100_40gb")
    assert node["node"] == {
        "accelerator": "a100_40gb",
        "accelerators": 4,
        "intra": {"kind": "nvlink3", "shape": "full_mesh"},
        "sockets": 1,
        "pcie_switches": 0,
    }


def test_pcie_alone_as_colours_of_a_terminal_print_it():
    text = (
        "\x1b[4m\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \tSYS\t0-15\t0\nGPU1\tSYS\t X \t16-31\t1\n"
    )
    node = section(read_nvidia_smi(text, "t"), accelerator="a100_40gb")["node"]
    assert (node["sockets"], node["pcie_switches"], "intra" in node) == (2, 0, False)


def test_a_server_that_no_shape_describes_becomes_a_graph(tmp_path):
    def joint(one, other):
        return "NV12" if {one, other} == {"GPU0", "GPU1"} else "NODE"

    inventory = read_nvidia_smi(matrix(3, 1, joint, lambda _: "0-31"), "topo.txt")
    assert inventory.nvlinks == {(0, 1): 12}
    with pytest.raises(CalibrationError, match="no node shape describes this server"):
        section(inventory, accelerator="a100_40gb", nic="ib_hdr")
    (tmp_path / "g.json").write_text(json.dumps(graph(inventory, accelerator="a100_40gb")))
    cluster = topologies.cluster({"graph": "g.json"}, tmp_path)
    assert [cluster.links[link].kind for link in cluster.route("gpu 0", "gpu 1")] == ["nvlink3"]
    assert cluster.links[cluster.route("gpu 0", "gpu 1")[0]].bandwidth == pytest.approx(300e9)
    assert [cluster.links[link].kind for link in cluster.route("gpu 0", "gpu 2")] == ["pcie4", "pcie4"]


def test_nvlinks_of_a_switch_and_of_a_mesh_are_told_apart():
    def of(gpus, links):
        return read_nvidia_smi(matrix(gpus, 0, lambda *_: f"NV{links}", lambda _: "0-7"), "t").shape

    assert [of(8, 12), of(8, 18), of(4, 4), of(2, 12), of(16, 6)] == [
        ("switch", 12),
        ("switch", 18),
        ("full_mesh", 12),
        ("full_mesh", 12),
        ("switch", 6),
    ]
    assert SWITCH < 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\tGPU0\tGPU1\nGPU0\t X \n", r"t\.txt:2: GPU0 has 1 of 2 columns"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", r"t\.txt: has no row of GPU1"),
        ("nothing\n", r"t\.txt: has no header GPU0"),
    ],
)
def test_a_truncated_matrix(text, message):
    with pytest.raises(CalibrationError, match=message):
        read_nvidia_smi(text, "t.txt")


def test_missing_names_must_be_given():
    inventory = read_nvidia_smi(matrix(8, 8, hgx, halves), "topo.txt")
    with pytest.raises(CalibrationError, match="--accelerator"):
        section(inventory)
    with pytest.raises(CalibrationError, match="--nic"):
        section(inventory, accelerator="h100")


@pytest.mark.parametrize("cell", ["NVa", "NV", "NV-1", "NV" + "9" * 9])
def test_links_without_a_number_are_told(cell):
    text = matrix(8, 9, hgx, halves).replace("NV18", cell, 1)
    with pytest.raises(CalibrationError, match=r"topo\.txt: the row of GPU0 has 'NV.*NVLinks are written NV and their"):
        read_nvidia_smi(text, "topo.txt")
