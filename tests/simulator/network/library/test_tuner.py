"""The choice of algorithm and protocol, fixed by the user or by the tuner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clustersim import topologies
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.lookup import UnknownName
from clustersim.topologies.uniform_and_tree import uniform

ALL8 = tuple(range(8))


def chosen(algorithms: dict[str, str], asked: str = "auto", axis: str = "dp") -> str:
    cluster = uniform(8, 1e9, 1e-6)
    communicator = Communicator(cluster, cluster.gpus, ideal(), algorithms=algorithms)
    return communicator.collective("all_reduce", axis, ALL8, 1e6, 0, asked).algorithm


def test_the_axis_comes_before_the_op_and_the_op_before_the_collective() -> None:
    assert chosen({}) == "ring"
    assert chosen({"all_reduce": "tree"}) == "tree"
    assert chosen({"all_reduce": "tree", "tp.all_reduce": "direct"}) == "tree"
    assert chosen({"all_reduce": "tree", "tp.all_reduce": "direct"}, axis="tp") == "direct"
    assert chosen({"all_reduce": "tree"}, asked="halving_doubling") == "halving_doubling"
    assert chosen({"dp.all_reduce": "hierarchical"}, asked="halving_doubling") == "hierarchical"
    assert chosen({"all_reduce": "auto", "dp.all_reduce": "auto"}) == "ring"


def test_an_algorithm_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lab_of_the_tuner"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "star.py").write_text(
        "from clustersim.simulator.network.step import Step\n"
        "def all_reduce(group, nbytes):\n"
        "    others = range(1, group.size)\n"
        "    return [Step(tuple((i, 0) for i in others), nbytes, coupled=False, reduces=True),\n"
        "            Step(tuple((0, i) for i in others), nbytes, coupled=False)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cluster = uniform(8, 1e9, 1e-6)
    plan = Communicator(cluster, cluster.gpus, ideal(), algorithms={"all_reduce": "lab_of_the_tuner.star"}).collective(
        "all_reduce", "dp", ALL8, 1e6
    )
    assert (plan.algorithm, plan.sent_bytes, len(plan.phases)) == ("lab_of_the_tuner.star", 14e6, 2)
    sys.modules.pop("lab_of_the_tuner.star")


def test_errors_list_the_valid_names() -> None:
    with pytest.raises(UnknownName, match=r'unknown name "rign"; there are: ring,'):
        chosen({"all_reduce": "rign"})
    with pytest.raises(
        SimulatorError, match=r'algorithms: "dp.all_reduse" is not a collective; there are: all_reduce,'
    ):
        chosen({"dp.all_reduse": "ring"})
    with pytest.raises(SimulatorError, match=r"tree has no all_gather; algorithms with all_gather: direct"):
        chosen({"all_gather": "tree"})
    with pytest.raises(SimulatorError, match=r'NCCL has no tables for version "3"; there are: 2.5, 2.10, 2.30'):
        nccl("3")


def test_nccl_changes_protocol_with_size_and_algorithm_with_servers() -> None:
    """Small vectors use LL, large ones Simple. Between servers small vectors use trees. This is NCCL's own choice."""
    one, many = topologies.cluster("dgx1"), topologies.cluster({"preset": "dgx1", "nodes": 16})

    def choice(cluster: Cluster, nbytes: float) -> tuple[str, str]:
        communicator = Communicator(cluster, cluster.gpus, nccl())
        plan = communicator.collective("all_reduce", "dp", tuple(range(len(cluster.gpus))), nbytes)
        return plan.algorithm, plan.protocol

    assert [choice(one, size) for size in (1024, 2**20, 2**30)] == [("ring", p) for p in ("LL", "LL128", "Simple")]
    assert choice(many, 1024) == ("tree", "LL")
    assert choice(many, 2**33) == ("ring", "Simple")


def test_ll128_needs_nvlink_and_near_nics() -> None:
    """On Zhores the NIC is reached through the host (PATH_PHB), so NCCL does not use LL128."""
    for nodes, protocols in ((1, {"LL", "LL128", "Simple"}), (2, {"LL", "Simple"})):
        cluster = topologies.cluster({"preset": "zhores", "nodes": nodes})
        communicator = Communicator(cluster, cluster.gpus, nccl())
        ranks = tuple(range(len(cluster.gpus)))
        sizes = [2.0**exponent for exponent in range(8, 31)]
        assert {communicator.collective("all_reduce", "dp", ranks, size).protocol for size in sizes} == protocols


def test_messages_go_by_simple() -> None:
    cluster = topologies.cluster("dgx1")
    communicator = Communicator(cluster, cluster.gpus, nccl())
    assert (
        communicator.send(0, 3, 64).protocol == communicator.collective("gather", "dp", ALL8, 64).protocol == "Simple"
    )


@pytest.mark.parametrize("transport", [ideal(), nccl(), gloo()])
def test_every_collective_has_a_plan_that_more_bytes_never_shorten(transport: Transport) -> None:
    cluster = topologies.cluster({"preset": "dgx1", "nodes": 2})
    communicator = Communicator(cluster, cluster.gpus, transport, "alpha_beta")
    for kind in transport.algorithms:
        times = [
            sum(phase.latency for phase in communicator.collective(kind, "dp", tuple(range(16)), nbytes, 3).phases)
            for nbytes in (1e3, 1e5, 1e7, 1e9)
        ]
        assert 0 < times[0] <= times[1] <= times[2] <= times[3]


def test_only_nccl_takes_multiprocessors() -> None:
    cluster = topologies.cluster("dgx1")

    def taken(transport: Transport) -> float:
        return Communicator(cluster, cluster.gpus, transport).collective("all_reduce", "dp", ALL8, 1e8).sms

    assert taken(ideal()) == taken(gloo()) == 0
    assert taken(nccl()) == 12 / 80  # twelve channels, NCCL's number on DGX-1V, of the V100's 80 SMs
