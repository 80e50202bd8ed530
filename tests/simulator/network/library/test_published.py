"""NCCL against published figures that no parameter was fitted to and no prior was set around, most of them on Hopper
and Blackwell.

S. Bekman, Machine Learning Engineering, network/README.md (stas00/ml-engineering, 2026): nccl-tests and
all_reduce_bench on servers of eight H200 or B200, NCCL 2.27. An H200 has the NVLinks of an H100.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clustersim import topologies
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.library.nccl_tables import with_networks
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.reading.errors import SimulatorError

PUBLISHED = Path(__file__).parents[4] / "scenarios/published"

SWEEP = {
    2**15: 1.44,
    2**16: 2.93,
    2**17: 5.73,
    2**18: 11.74,
    2**19: 23.94,
    2**20: 39.93,
    2**21: 64.53,
    2**22: 107.16,
    2**23: 155.53,
    2**24: 219.89,
    2**25: 275.84,
    2**26: 346.51,
    2**27: 401.93,
    2**28: 436.15,
    2**29: 450.29,
    2**30: 463.58,
    2**31: 469.17,
    2**32: 473.10,
    2**33: 477.45,
    2**34: 482.26,
}
"""Bytes of an all-reduce on eight H200 -> busbw, GB/s."""


def hopper(nodes: int = 1) -> Cluster:
    return topologies.cluster({"preset": "dgx_h100", "nodes": nodes})


def plan(
    cluster: Cluster, ranks: int, nbytes: float, kind: str = "all_reduce", algorithm: str = "auto"
) -> TransferPlan:
    communicator = Communicator(cluster, cluster.gpus, nccl("2.30"))
    return communicator.collective(kind, "dp", tuple(range(ranks)), nbytes, 0, algorithm)


def busbw(ranks: int, nbytes: float, seconds: float) -> float:
    """GB/s of an all-reduce."""
    return 2 * (ranks - 1) / ranks * nbytes / seconds / 1e9


def test_a_sweep_on_eight_h200() -> None:
    """Mean error 8 %, 22 % at most: between 4 and 64 MiB NVLS fills its pipeline, which is not modelled."""
    errors = [abs(busbw(8, size, plan(hopper(), 8, size).alone) / found - 1) for size, found in SWEEP.items()]
    assert max(errors) < 0.3
    assert sum(errors) / len(errors) < 0.1


def test_nvls_takes_over_from_ll_between_one_and_two_mebibytes() -> None:
    chosen = [plan(hopper(), 8, 2.0**size) for size in (20, 21)]
    assert [(one.algorithm, one.protocol) for one in chosen] == [("ring", "LL"), ("nvls", "Simple")]


@pytest.mark.parametrize(("ranks", "found"), [(5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1)])
def test_nvls_gains_with_every_gpu(ranks: int, found: float) -> None:
    """A link carries 1 + 1 / p of the vector; by a ring it would carry 2 - 2 / p. 8 GiB on H200."""
    assert busbw(ranks, 2.0**33, plan(hopper(), ranks, 2.0**33).alone) == pytest.approx(found, rel=0.05)


@pytest.mark.xfail(
    strict=True,
    reason="predicted 3.6 % less for the all-reduce, 5.4 % for the others: among 2, 4 and 8 H100 up to 512 MiB, which "
    "alone inform the rate (aiconfigurator), rings wait for half a round, these for a quarter. Eight H100 gather the "
    "second half of 512 MiB at 349 GB/s, 3.5 % below these",
)
@pytest.mark.parametrize(
    ("kind", "factor", "found"), [("all_reduce", 2, 367.2), ("all_gather", 1, 361.4), ("reduce_scatter", 1, 362.9)]
)
def test_rings_on_eight_h200(kind: str, factor: int, found: float) -> None:
    seconds = plan(hopper(), 8, 2.0**34, kind, "ring").alone
    assert factor * 7 / 8 * 2**34 / seconds / 1e9 == pytest.approx(found, rel=0.03)


def test_eight_b200() -> None:
    server = topologies.cluster({"preset": "dgx_h100", "node": {"accelerator": "b200", "intra": {"kind": "nvlink5"}}})
    for algorithm, found in (("nvls", 838.0), ("ring", 682.2)):
        seconds = plan(server, 8, 2.0**33, algorithm=algorithm).alone
        assert busbw(8, 2.0**33, seconds) == pytest.approx(found, rel=0.07)


def test_four_servers_of_h200_with_3200_gbit() -> None:
    """369.06 GB/s at 16 GiB, by rings, on EFA of the same bandwidth."""
    found = plan(hopper(4), 32, 2.0**34)
    assert found.algorithm == "ring"
    assert busbw(32, 2.0**34, found.alone) == pytest.approx(369.06, rel=0.05)


def test_four_servers_of_b200_with_3200_gbit() -> None:
    """381.80 GB/s at 16 GiB."""
    servers = topologies.cluster(
        {"preset": "dgx_h100", "nodes": 4, "node": {"accelerator": "b200", "intra": {"kind": "nvlink5"}}}
    )
    assert busbw(32, 2.0**34, plan(servers, 32, 2.0**34).alone) == pytest.approx(381.80, rel=0.05)


@pytest.mark.parametrize(("gpus", "ring", "tree"), [(4, 196.7, 234.4), (8, 393.6, 485.7)])
def test_three_nvlink_domains_of_gb200(gpus: int, ring: float, tree: float) -> None:
    """NVIDIA/nccl, issue 1801 (2025): 16 GiB, NCCL 2.27.3, domains in three racks joined by InfiniBand, NVLS off."""
    domain = {"accelerators": gpus, "sockets": gpus // 2, "nics": gpus}
    racks = topologies.cluster({"preset": "gb200_nvl72", "nodes": 3, "node": domain})
    for algorithm, found, near in (("ring", ring, 0.06), ("tree", tree, 0.11)):
        taken = plan(racks, 3 * gpus, 2.0**34, algorithm=algorithm)
        assert busbw(3 * gpus, 2.0**34, taken.alone) == pytest.approx(found, rel=near)
    assert plan(racks, 3 * gpus, 2.0**34).algorithm == "ring"


def test_two_servers_of_amazon() -> None:
    """64 KiB to 16 GiB on p4de and p5, NCCL 2.27 (aws-samples/awsome-distributed-training): 8 % in the mean."""
    with (PUBLISHED / "nccl_aws.csv").open() as file:
        rows = list(csv.DictReader(file))
    found: dict[str, Communicator] = {}
    library = with_networks(replace(nccl("2.30"), handover=0.0), sharp=False, nvls_tree=True)
    errors = []
    for row in rows:
        kind = "p5_48xlarge" if "p5_" in row["cluster"] else "p4de_24xlarge"
        servers = topologies.cluster({"preset": kind, "nodes": 2})
        network = found.setdefault(row["cluster"], Communicator(servers, servers.gpus, library))
        taken = network.collective("all_reduce", "dp", tuple(range(16)), float(row["size"].split()[0])).alone
        errors.append(taken / float(row["time_s"]) - 1)
    assert sum(map(abs, errors)) / len(errors) < 0.1
    assert abs(sum(errors) / len(errors)) < 0.05
    middle = [error for row, error in zip(rows, errors, strict=True) if "p5_" in row["cluster"] and _by_trees(row)]
    assert len(middle) == 4
    assert max(map(abs, middle)) < 0.08


def _by_trees(row: dict[str, str]) -> bool:
    """128 MiB to 1 GiB, which NVLSTree passes in several chunks for each channel, and not in very many."""
    return 2**27 <= float(row["size"].split()[0]) <= 2**30


def test_three_servers_of_a100_with_800_gbit() -> None:
    """NVIDIA/nccl-tests, issue 119 (2022): 84.8 GB/s, the mean over 1, 2 ... 128 MiB, four HDR NICs on each server."""
    servers = topologies.cluster({"preset": "dgx_a100_40gb", "nodes": 3, "node": {"nics": 4}})
    communicator = Communicator(servers, servers.gpus, nccl())
    found = [
        busbw(24, size, communicator.collective("all_reduce", "dp", tuple(range(24)), size).alone)
        for size in (mebibytes * 2.0**20 for mebibytes in range(1, 129))
    ]
    assert sum(found) / len(found) == pytest.approx(84.8, rel=0.05)


def test_small_vectors_on_thirty_two_servers() -> None:
    """NVIDIA/nccl, issue 652 (2022): 63 us for 8 to 128 B among 256 A100, by nccl-tests with a process for each GPU."""
    servers = topologies.cluster({"preset": "dgx_a100_40gb", "nodes": 32, "node": {"nics": 4}})
    library = replace(nccl(), handover=0.0)
    found = Communicator(servers, servers.gpus, library).collective("all_reduce", "dp", tuple(range(256)), 128.0)
    assert (found.algorithm, found.protocol) == ("tree", "LL")
    assert found.alone == pytest.approx(63e-6, rel=0.1)


def test_nvls_needs_its_switches() -> None:
    message = "all_reduce over dp: nvls needs GPUs of one server behind switches of nvlink4 or nvlink5; try auto"
    for cluster in (topologies.cluster("dgx_a100_80gb"), hopper(2)):
        with pytest.raises(SimulatorError, match=message):
            plan(cluster, len(cluster.gpus), 1e8, algorithm="nvls")
