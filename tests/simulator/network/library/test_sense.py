"""Properties of every plan: slower links are never faster, a bad placement costs time, Gloo is slow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim import topologies
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import ONE_CORE
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.gloo import STACK, gloo
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.transport import Transport
from clustersim.topologies.uniform_and_tree import uniform

ALGORITHMS = ("ring", "tree", "halving_doubling", "hierarchical", "direct")


def seconds(cluster: Cluster, devices: Sequence[str], transport: Transport, algorithm: str, nbytes: float) -> float:
    communicator = Communicator(cluster, devices, transport, "alpha_beta", {"all_reduce": algorithm})
    plan = communicator.collective("all_reduce", "dp", tuple(range(len(devices))), nbytes)
    return sum(phase.latency for phase in plan.phases)


@pytest.mark.parametrize("transport", [ideal(), replace(nccl(), tuning_model=None), gloo()], ids=lambda t: t.name)
@given(
    p=st.integers(2, 20),
    nbytes=st.floats(1, 1e10),
    bandwidth=st.floats(1e8, 1e12),
    latency=st.floats(0, 1e-3),
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_half_the_bandwidth_or_twice_the_latency_is_never_faster(
    transport: Transport, p: int, nbytes: float, bandwidth: float, latency: float, algorithm: str
) -> None:
    # with a wrong tuning model a library may be faster on slower links, where it happens to choose better
    def run(bandwidth: float, latency: float) -> float:
        cluster = uniform(p, bandwidth, latency)
        return seconds(cluster, cluster.gpus, transport, algorithm, nbytes)

    fast = run(bandwidth, latency)
    assert run(bandwidth / 2, latency) >= fast * (1 - 1e-12)
    assert run(bandwidth, latency * 2) >= fast * (1 - 1e-12)


def shuffled(cluster: Cluster) -> tuple[str, ...]:
    gpus = list(cluster.gpus)
    random.Random(0).shuffle(gpus)
    return tuple(gpus)


def test_hierarchical_beats_a_flat_ring_placed_badly_on_zhores() -> None:
    """100 GPUs, 100 MB: four GPUs share a NIC, and a badly placed ring crosses it four times."""
    cluster = topologies.cluster("zhores")
    good, bad = cluster.gpus, shuffled(cluster)
    flat, placed_well = seconds(cluster, bad, ideal(), "ring", 1e8), seconds(cluster, good, ideal(), "ring", 1e8)
    assert seconds(cluster, bad, ideal(), "hierarchical", 1e8) < flat / 3
    assert flat > 3.5 * placed_well


def test_nccl_corrects_the_placement() -> None:
    cluster = topologies.cluster("zhores")
    good, bad = (seconds(cluster, gpus, nccl(), "ring", 1e8) for gpus in (cluster.gpus, shuffled(cluster)))
    assert bad == pytest.approx(good, rel=0.01)


def test_gloo_is_limited_by_one_core() -> None:
    """Over a port of 400 Gb/s one thread of TCP is the limit, over 10 Gb/s the wire."""
    fast, slow = uniform(4, 50e9, 1e-6), uniform(4, 1.25e9, 1e-6)
    for cluster, rate in ((fast, ONE_CORE), (slow, 1.25e9 * 1448 / 1538)):
        assert 1.5 * 1e10 / seconds(cluster, cluster.gpus, gloo(), "ring", 1e10) == pytest.approx(rate, rel=1e-3)


def test_a_message_over_gloo_passes_two_network_stacks() -> None:
    cluster = uniform(2, 1e9, 5e-6)
    plan = Communicator(cluster, cluster.gpus, gloo()).send(0, 1, 1.0)
    assert plan.phases[0].latency + plan.delivery == pytest.approx(2 * STACK)


@pytest.mark.parametrize("nodes", [2, 8])
def test_bus_bandwidth_between_servers_is_that_of_their_nics(nodes: int) -> None:
    """DGX A100: at most NCCL's share of eight NICs of 25 GB/s, less some latency."""
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": nodes})
    p = len(cluster.gpus)
    busbw = 2 * (p - 1) / p * 1e10 / seconds(cluster, cluster.gpus, nccl(), "ring", 1e10)
    most = nccl().efficiency["NET"] * 200e9
    assert 0.9 * most < busbw < most
