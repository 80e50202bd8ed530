"""Known effects on the cluster of the lectures: 25 nodes of four V100, one EDR NIC per node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from clustersim import topologies
from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import Result
from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate

GPUS, NIC = 100, 12.5e9
"""EDR InfiniBand: 100 Gb/s."""
SIZE = 1e9
BOUND = 2 * (GPUS - 1) / GPUS * SIZE / NIC
"""The time of a ring in order of nodes, s: one hop leaves each node and carries 2 (n - 1) / n of the vector."""


@cache
def zhores(nodes: int = 25, nic: str = "100 Gb/s") -> Cluster:
    return topologies.cluster({"preset": "zhores", "nodes": nodes, "node": {"nic": {"bandwidth": nic}}})


def all_reduce(
    cluster: Cluster, transport: Transport, algorithm: str, devices: tuple[str, ...] | None = None
) -> Timeline:
    op = Collective(name="sum", kind="all_reduce", over="dp", nbytes=SIZE)
    ranks = len(cluster.gpus)
    schedule = Schedule(Mesh.regular({"dp": ranks}), (Program("GPU", (op,)),), (0,) * ranks)
    algorithms = {"all_reduce": algorithm}
    return simulate(schedule, cluster, transport=transport, algorithms=algorithms, placement=devices)


def dealt(cluster: Cluster) -> tuple[str, ...]:
    """Round-robin placement: neighbouring ranks are on different nodes."""
    return tuple(gpu for turn in range(4) for gpu in cluster.gpus[turn::4])


@cache
def step(overrides: tuple[tuple[str, Any], ...], scenario: str = "zhores_resnet50_ddp") -> Result:
    return Scenario.load(scenario, dict(overrides)).run()


def trained(**changes: Any) -> Mapping[str, Any]:
    """The summary of the main scenario with *changes*; double underscores in their names stand for dots."""
    return step(tuple((key.replace("__", "."), value) for key, value in changes.items())).summary()


def test_all_reduce_over_100_gpus_is_limited_by_the_nic_that_four_gpus_share() -> None:
    timeline = all_reduce(zhores(), ideal(), "ring")
    use = network_traffic.utilisation(timeline)
    busiest = {kind: share["max"] for kind, share in use.items()}
    assert BOUND < timeline.makespan < 1.002 * BOUND
    assert busiest.pop("ib_edr") == pytest.approx(BOUND / timeline.makespan)
    assert max(busiest.values()) < 0.8


def test_the_four_gpus_of_a_node_leave_it_by_one_nic() -> None:
    cluster = zhores()
    for node in range(25):
        routes = [cluster.route(f"gpu {4 * node + i}", f"gpu {(4 * node + 4) % GPUS}") for i in range(4)]
        ends = [{cluster.ends[link] for link in route if cluster.links[link].kind == "ib_edr"} for route in routes]
        assert len({source for source, _ in set.intersection(*ends) if source.startswith("nic")}) == 1


def test_a_nic_of_twice_the_bandwidth_is_limited_by_pcie() -> None:
    """PCIe 3.0 x16 carries 15.75 GB/s, so a NIC of 200 Gb/s is at most 15.75 / 12.5 times as fast."""
    faster = all_reduce(zhores(nic="200 Gb/s"), ideal(), "ring")
    assert all_reduce(zhores(), ideal(), "ring").makespan / faster.makespan == pytest.approx(15.75 / 12.5, rel=2e-3)


@pytest.mark.parametrize("transport", [ideal, nccl, gloo])
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "tree", "halving_doubling"])
def test_no_algorithm_beats_the_bound_of_the_nic(transport: Any, algorithm: str) -> None:
    """N nodes must exchange 2 (N - 1) d in all (Patarasuk and Yuan 2009, theorem 1), so one NIC 2 (N - 1) / N d."""
    for devices in (None, dealt(zhores())):
        timeline = all_reduce(zhores(), transport(), algorithm, devices)
        assert timeline.makespan > 2 * (25 - 1) / 25 * SIZE / NIC


@pytest.mark.parametrize("transport", [ideal, gloo])
def test_hierarchical_beats_a_flat_ring_with_round_robin_placement(transport: Any) -> None:
    bad = dealt(zhores())
    flat = all_reduce(zhores(), transport(), "ring", bad).makespan
    assert all_reduce(zhores(), transport(), "hierarchical", bad).makespan < flat / 1.5


def test_with_round_robin_placement_all_four_hops_of_a_node_share_its_nic() -> None:
    flat = all_reduce(zhores(), ideal(), "ring", dealt(zhores())).makespan
    assert flat == pytest.approx(4 * BOUND, rel=2e-3)


def test_placement_does_not_matter_to_a_transport_that_orders_its_rings() -> None:
    times = {all_reduce(zhores(), nccl(), "ring", devices).makespan for devices in (None, dealt(zhores()))}
    assert max(times) == pytest.approx(min(times), rel=1e-9)


def test_ddp_with_overlap_beats_ddp_without() -> None:
    overlapped, after = trained(), trained(parallelism__data__overlap=False)
    assert overlapped["step_time_s"] < after["step_time_s"]
    assert overlapped["breakdown_s"]["exposed_dp"] < 0.2 * after["breakdown_s"]["exposed_dp"]
    assert overlapped["traffic_bytes"] == pytest.approx(after["traffic_bytes"])


def test_without_overlap_computation_and_communication_add_up() -> None:
    after = trained(
        parallelism__data__overlap=False, network__transport="ideal", network__algorithms__all_reduce="ring"
    )
    # as wide as the parameters; when memory is fullest, a part of them is there
    gradients = after["memory"]["by_category_bytes"]["parameters"]
    bound = 2 * (GPUS - 1) / GPUS * gradients / NIC
    assert after["breakdown_s"]["exposed_dp"] == pytest.approx(bound, rel=0.02)
    parts = after["breakdown_s"]
    assert after["step_time_s"] == pytest.approx(parts["compute"] + parts["optimizer"] + parts["exposed_dp"])


def test_the_parameter_server_falls_behind_the_ring_as_nodes_grow() -> None:
    ratios = []
    for nodes in (2, 5, 10, 25):
        size = {"cluster__nodes": nodes, "training__global_batch_size": 256 * nodes}
        served = trained(**size, parallelism__data__method="parameter_server")
        ratios.append(served["step_time_s"] / trained(**size)["step_time_s"])
    assert ratios[0] > 1
    assert all(later > 1.5 * earlier for earlier, later in pairwise(ratios))


def test_the_server_sends_and_receives_the_model_once_for_every_gpu_of_another_node() -> None:
    """2 d (p - 4) / B: the closed form of one server, for the GPUs that it reaches by its NIC."""
    size = {"cluster__nodes": 10, "training__global_batch_size": 2560, "network__transport": "ideal"}
    served = trained(**size, parallelism__data__method="parameter_server")
    model = served["memory"]["by_category_bytes"]["parameters"]
    assert served["breakdown_s"]["exposed_ps"] == pytest.approx(2 * model * (40 - 4) / NIC, rel=0.02)
