"""Copies between GPU, host and drives: PCIe, the memory of the host and the drives bound them, alone and together."""

import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Copy
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.cluster_section import specification
from clustersim.topologies.uniform_and_tree import uniform

GB = 1e9


def rate(cluster, ranks, *copies, engine="compiled", fold=True):
    """GB/s of each of *ranks* that copy one after the other 12 GB by *copies*, all at once."""
    ops = tuple(
        Copy(name=f"copy {n}", nbytes=12 * GB, source=source, to=to, stream=stream)
        for n, (source, to, stream) in enumerate(copies)
    )
    schedule = Schedule(Mesh.regular({"dp": ranks}), (Program("rank", ops),), (0,) * ranks)
    timeline = simulate(schedule, cluster, transport=nccl(), engine=engine, fold=fold)
    return 12 / timeline.makespan


OUT, IN, READ, WRITE = (
    ("gpu", "host", "a"),
    ("host", "gpu", "b"),
    ("nvme", "host", "a"),
    ("host", "nvme", "b"),
)


@pytest.mark.parametrize("direction", [OUT, IN])
def test_the_host_links_of_a_dgx_2_are_those_that_zero_infinity_measured(direction):
    cluster = specification({"preset": "dgx2"}).build()
    # Rajbhandari et al. 2021 (arXiv:2104.07857), figure 2b: 12 GB/s alone, 3.0 for each of sixteen at once
    assert rate(cluster, 1, direction) == pytest.approx(12.0, rel=1e-6)
    assert rate(cluster, 16, direction) == pytest.approx(3.0, rel=1e-6)


def test_the_drives_of_a_dgx_2_give_each_gpu_what_zero_infinity_measured():
    cluster = specification({"preset": "dgx2"}).build()
    assert rate(cluster, 16, READ) == pytest.approx(1.6, rel=1e-6)


SMALL = {
    "nodes": 2,
    "node": {
        "accelerator": "v100_16gb",
        "accelerators": 4,
        "host": {"kind": "pcie3", "bandwidth": "12 GB/s", "latency": "0 s"},
        "processor": {"preset": "xeon_gold_6140", "memory_bandwidth": "20 GB/s", "memory_efficiency": 1.0},
        "sockets": 2,
        "nvme": {"count": 2, "read": "3 GB/s", "write": "1 GB/s", "capacity": "1 TB"},
        "nic": {"kind": "ib_edr"},
    },
}


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("fabric", ["switch", "torus"])
def test_reading_and_writing_share_the_memory_of_a_host(engine, fold, fabric):
    cluster = specification(
        {**SMALL, "fabric": {"kind": fabric, **({"dims": [2]} if fabric == "torus" else {})}}
    ).build()
    how = {"engine": engine, "fold": fold}
    assert rate(cluster, 1, OUT, **how) == pytest.approx(12.0, rel=1e-6)
    # out and in at once have a direction of PCIe each, and half of the memory
    assert rate(cluster, 1, OUT, IN, **how) == pytest.approx(10.0, rel=1e-6)
    # two GPUs of a socket
    assert rate(cluster, 8, OUT, **how) == pytest.approx(10.0, rel=1e-6)
    assert rate(cluster, 8, OUT, IN, **how) == pytest.approx(5.0, rel=1e-6)
    # cores of the host at work have what PCIe leaves, or an equal share
    cores = ("host", "host", "b")
    assert rate(cluster, 1, OUT, cores, **how) == pytest.approx(10.0, rel=1e-6)
    assert rate(cluster, 8, cores, **how) == pytest.approx(10.0, rel=1e-6)
    # all GPUs of a node share its two drives
    assert rate(cluster, 8, READ, **how) == pytest.approx(1.5, rel=1e-6)
    assert rate(cluster, 8, WRITE, **how) == pytest.approx(0.5, rel=1e-6)


def test_cores_of_a_host_without_a_link_of_its_memory_take_its_bandwidth():
    cluster = uniform(2, GB, 0.0, 1, Accelerator(memory_bandwidth=4 * GB))
    assert rate(cluster, 2, ("host", "host", "a")) == pytest.approx(4.0, rel=1e-6)


def test_capacities():
    cluster = specification(SMALL).build()
    assert cluster.host_memory(["gpu 0"]) == 2 * cluster.accelerator("host 0").memory_bytes
    assert cluster.drive_capacity("gpu 7") == 2e12
    assert uniform(2, GB, 0.0).drive_capacity("gpu 0") == 0.0


def test_a_node_without_drives_says_what_it_needs():
    with pytest.raises(ClusterError, match="node of gpu 0 has no NVMe drive; give the node nvme"):
        specification({"preset": "dgx1"}).build().copy_path("gpu 0", "nvme", "host")


def test_memory_is_no_part_of_other_routes():
    cluster = specification({"preset": "dgx2"}).build()
    for target in ("host 0", "host 1", "gpu 9"):
        assert "dram" not in {cluster.links[number].kind for number in cluster.route("gpu 0", target)}
