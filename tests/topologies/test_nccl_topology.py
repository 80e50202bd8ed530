"""NCCL's topology file becomes the node that it was dumped on."""

import pytest

from clustersim import topologies
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.topologies.inventory import SWITCH, section
from clustersim.topologies.inventory_files import read_nccl_topology

BUS = 'link_speed="{speed} GT/s PCIe" link_width="16"'


def device(bus, inner, speed="16.0", pci="0x20b2"):
    common = 'vendor="0x10de" subsystem_vendor="0x0000" subsystem_device="0x0000"'
    link = BUS.format(speed=speed)
    return f'<pci busid="0000:{bus}:00.0" class="0x030200" {common} device="{pci}" {link}>{inner}</pci>'


def gpu(number, links, pci="0x20b2", sm=80):
    inner = f'<gpu dev="{number}" sm="{sm}" rank="{number}" gdr="1">{links}</gpu>'
    return device(f"{0x10 + number:02x}", inner, pci=pci)


def nic(number, speed=200000):
    port = f'<net name="mlx5_{number}" dev="{number}" speed="{speed}" port="1" latency="0.000000" gdr="1"/>'
    return device(f"{0x80 + number:02x}", f"<nic>{port}</nic>", pci="0x101b")


def switches(links):
    return "".join(f'<nvlink target="0000:{c}:00.0" count="2" tclass="0x068000"/>' for c in links)


def dgx_a100():
    """Two processors with two PCIe switches each, two GPUs and two NICs on each switch, six NVSwitches."""
    text = ""
    for socket in range(2):
        below = ""
        for place in (2 * socket, 2 * socket + 1):
            parts = [part(2 * place + i) for i in (0, 1) for part in (lambda n: gpu(n, switches("abcdef")), nic)]
            below += device(f"{0xC0 + place:02x}", "".join(parts), pci="0xc010")
        text += f'<cpu numaid="{socket}" affinity="0000ffff" arch="x86_64" vendor="AuthenticAMD">{below}</cpu>'
    return f'<system version="1">{text}</system>'


def test_a_dgx_a100_is_the_catalogues():
    inventory = read_nccl_topology(dgx_a100(), "topo.xml")
    assert inventory.nvlinks == {(gpu, SWITCH): 12 for gpu in range(8)}
    node = section(inventory, 2)
    assert node == {
        "nodes": 2,
        "node": {
            "accelerator": "a100_80gb",
            "accelerators": 8,
            "intra": {"kind": "nvlink3", "shape": "switch"},
            "host": {"kind": "pcie4"},
            "sockets": 2,
            "pcie_switches": 4,
            "nics": 8,
            "nic": {"kind": "ib_hdr"},
        },
    }
    ours, theirs = topologies.cluster(node), topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 2})
    for pair in [("gpu 0", "gpu 7"), ("gpu 3", "gpu 9"), ("gpu 0", "host 0")]:
        links = [[cluster.links[link] for link in cluster.route(*pair)] for cluster in (ours, theirs)]
        if pair[1] != "gpu 9":  # between nodes the named cluster has rails, a plain one a switch
            assert links[0] == links[1]
    assert [ours.links[link].kind for link in ours.route("gpu 3", "gpu 9")][:3] == ["pcie4", "pcie4", "ib_hdr"]


def test_gpus_joined_directly():
    def to(number, count):
        return f'<nvlink target="0000:{0x10 + number:02x}:00.0" count="{count}" tclass="0x030200"/>'

    gpus = "".join(gpu(i, "".join(to(j, 2) for j in range(4) if j != i), "0x1db1", 70) for i in range(4))
    text = (
        f'<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">{gpus}{nic(0, 100000)}</cpu></system>'
    )
    inventory = read_nccl_topology(text, "topo.xml")
    assert inventory.shape == ("full_mesh", 6)
    node = section(inventory)["node"]
    assert (node["accelerator"], node["intra"]["kind"], node["nic"]) == ("v100_16gb", "nvlink2", {"kind": "ib_edr"})
    assert (node["sockets"], node["pcie_switches"]) == (1, 0)


def test_a_speed_between_those_of_the_catalogue_is_kept():
    text = f'<system version="1"><cpu numaid="0">{gpu(0, "")}{nic(0, 160000)}</cpu></system>'
    assert section(read_nccl_topology(text, "t"))["node"]["nic"] == {"kind": "ib_hdr", "bandwidth": "160 Gb/s"}


UNCOUNTED = '<nvlink target="" tclass="0x068000"/>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system>", r"t\.xml:1: is not valid XML"),
        ("<graphs/>", r"t\.xml: is not a topology file of NCCL: it begins with <graphs>"),
        ('<system version="1"><cpu numaid="0"/></system>', r"t\.xml: has no <gpu>"),
        (
            f'<system version="1"><cpu>{gpu(0, UNCOUNTED)}</cpu></system>',
            r"t\.xml: nvlink count: must be a whole number, not None",
        ),
    ],
)
def test_faults_in_the_file(text, message):
    with pytest.raises(CalibrationError, match=message):
        read_nccl_topology(text, "t.xml")


@pytest.mark.parametrize("number", ["0.5", "-1", "\u00b2", "9" * 30])
def test_a_gpu_without_a_number_is_told(number):
    with pytest.raises(CalibrationError, match="dev of a gpu: must be a whole number"):
        read_nccl_topology(dgx_a100().replace('gpu dev="0"', f'gpu dev="{number}"'), "topo.xml")
