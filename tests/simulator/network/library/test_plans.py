"""Plans over the ideal transport against the closed forms of the alpha-beta model, to the last digits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim import topologies
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.communicator import FIDELITIES, Communicator
from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.plan import Flow, TransferPlan
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.topologies.uniform_and_tree import uniform

SIZES = st.integers(2, 64)
BYTES = st.floats(1.0, 1e12)
ALPHAS = st.floats(1e-9, 1.0)
BANDWIDTHS = st.floats(1e3, 1e13)


def seconds(plan: TransferPlan, cluster: Cluster) -> float:
    """Duration of the phases in turn on idle links; the flows of a phase share the links."""
    total = 0.0
    for phase in plan.phases:
        total += phase.latency
        if phase.contended and phase.flows:
            total += phase.nbytes * busiest(phase.flows, cluster)
    return total + plan.delivery


def busiest(flows: tuple[Flow, ...], cluster: Cluster) -> float:
    taken: dict[int, float] = {}
    for flow in flows:
        for link, weight in zip(flow.links, flow.weights, strict=True):
            taken[link] = taken.get(link, 0.0) + weight
    return max(weight / cluster.links[link].bandwidth for link, weight in taken.items())


def measured(
    fidelity: str, kind: str, size: int, nbytes: float, alpha: float, bandwidth: float, algorithm: str
) -> float:
    cluster = uniform(size, bandwidth, alpha)
    communicator = Communicator(cluster, cluster.gpus, ideal(), fidelity)
    plan = communicator.collective(kind, "dp", tuple(range(size)), nbytes, 0, algorithm)
    return seconds(plan, cluster)


@pytest.mark.parametrize("fidelity", FIDELITIES)
@given(p=SIZES, d=BYTES, alpha=ALPHAS, bandwidth=BANDWIDTHS)
def test_ring(fidelity: str, p: int, d: float, alpha: float, bandwidth: float) -> None:
    half = (p - 1) * alpha + (p - 1) / p * d / bandwidth
    run = fidelity, p, d, alpha, bandwidth
    assert measured(fidelity, "all_gather", p, d, alpha, bandwidth, "ring") == pytest.approx(half, rel=1e-9), run
    assert measured(fidelity, "reduce_scatter", p, d, alpha, bandwidth, "ring") == pytest.approx(half, rel=1e-9), run
    assert measured(fidelity, "all_reduce", p, d, alpha, bandwidth, "auto") == pytest.approx(2 * half, rel=1e-9), run


@pytest.mark.parametrize("fidelity", FIDELITIES)
@given(p=SIZES, d=BYTES, alpha=ALPHAS, bandwidth=BANDWIDTHS)
def test_halving_doubling(fidelity: str, p: int, d: float, alpha: float, bandwidth: float) -> None:
    expected = 2 * ceil(log2(p)) * alpha + 2 * (p - 1) / p * d / bandwidth
    found = measured(fidelity, "all_reduce", p, d, alpha, bandwidth, "halving_doubling")
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("fidelity", FIDELITIES)
@given(p=SIZES, d=BYTES, alpha=ALPHAS, bandwidth=BANDWIDTHS)
def test_messages_of_a_root_share_its_port(fidelity: str, p: int, d: float, alpha: float, bandwidth: float) -> None:
    """p d through one port: the parameter server of the lecture, whose root is a host.

    No formula in the code says so.
    """
    cluster = uniform(p, bandwidth, alpha)
    communicator = Communicator(cluster, (*cluster.gpus, *cluster.hosts), ideal(), fidelity)
    ranks = (p, *range(p))
    for kind in ("broadcast", "reduce"):
        plan = communicator.collective(kind, "ps", ranks, d, 0, "direct")
        assert seconds(plan, cluster) == pytest.approx(alpha + p * d / bandwidth, rel=1e-9)
        assert plan.sent_bytes == pytest.approx(p * d)


@given(p=SIZES, d=BYTES, alpha=ALPHAS, bandwidth=BANDWIDTHS)
def test_a_rooted_collective_takes_the_fastest_algorithm(p: int, d: float, alpha: float, bandwidth: float) -> None:
    beta = 1 / bandwidth
    chain, direct = (p - 1) * alpha + (p + 6) / 8 * d * beta, alpha + (p - 1) * d * beta
    binomial = ceil(log2(p)) * (alpha + d * beta)
    found = measured("flow", "broadcast", p, d, alpha, bandwidth, "auto")
    assert found <= min(chain, direct, binomial) * (1 + 1e-9)
    assert found >= (alpha + d * beta) * (1 - 1e-9)


@given(p=st.integers(2, 24), d=BYTES, kind=st.sampled_from(["all_to_all", "gather", "scatter", "all_reduce", "reduce"]))
def test_a_plan_accounts_for_every_byte(p: int, d: float, kind: str) -> None:
    """In every fidelity the bytes on the links are the bytes that the ranks send, each over two links."""
    cluster = uniform(p, 1e9, 1e-6)
    for fidelity in FIDELITIES:
        plan = Communicator(cluster, cluster.gpus, ideal(), fidelity).collective(kind, "dp", tuple(range(p)), d, p - 1)
        carried: Counter[int] = Counter()
        for phase in plan.phases:
            for flow in phase.flows:
                for link, crossings in zip(flow.links, flow.crossings, strict=True):
                    carried[link] += crossings * phase.nbytes
        assert sum(carried.values()) == pytest.approx(2 * plan.sent_bytes)


def test_chunks_are_phases_of_their_own() -> None:
    cluster = uniform(4, 1e9, 1e-6)
    phases = [
        Communicator(cluster, cluster.gpus, ideal(), fidelity).collective("all_reduce", "dp", (0, 1, 2, 3), 4e6).phases
        for fidelity in ("chunk", "flow", "alpha_beta")
    ]
    assert [len(p) for p in phases] == [6, 1, 1]
    assert {phase.flows for phase in phases[0]} == {phases[0][0].flows}
    assert not phases[2][0].contended


def test_plans_and_flows_are_made_once() -> None:
    cluster = uniform(4, 1e9, 1e-6)
    communicator = Communicator(cluster, cluster.gpus, ideal())
    first = communicator.collective("all_reduce", "dp", (0, 1, 2, 3), 4e6)
    assert communicator.collective("all_reduce", "dp", (0, 1, 2, 3), 4e6) is first
    second = communicator.collective("all_gather", "dp", (0, 1, 2, 3), 1e3)
    assert second.phases[0].flows[0] is first.phases[0].flows[0]


def test_nothing_to_do_is_no_phase() -> None:
    cluster = uniform(4, 1e9, 1e-6)
    communicator = Communicator(cluster, cluster.gpus, ideal())
    assert communicator.collective("all_reduce", "dp", (2,), 4e6).phases == ()
    assert communicator.collective("all_reduce", "dp", (0, 1), 0).phases == ()
    assert communicator.send(0, 1, 0).phases == ()
    assert communicator.copy(0, 0, "gpu", "host").phases == ()


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_message_and_a_copy_cost_alpha_and_beta(fidelity: str) -> None:
    cluster = uniform(4, 1e9, 1e-6)
    communicator = Communicator(cluster, (*cluster.gpus, *cluster.hosts), ideal(), fidelity)
    assert seconds(communicator.send(0, 1, 1e6), cluster) == pytest.approx(1e-6 + 1e-3)
    up, down = communicator.copy(2, 1e6, "gpu", "host"), communicator.copy(2, 1e6, "host", "gpu")
    assert seconds(up, cluster) == seconds(down, cluster) == pytest.approx(1e-6 + 1e-3)
    ends = [cluster.ends[plan.phases[0].flows[0].links[0]][0] for plan in (up, down)]
    assert ends == ["gpu 2", "host 0"]
    assert communicator.copy(4, 1e6, "gpu", "host").phases == ()


def test_ranks_on_one_device_need_no_wire() -> None:
    cluster = uniform(2, 1e9, 1e-6)
    plan = Communicator(cluster, ("gpu 0", "gpu 0"), ideal()).send(0, 1, 1e6)
    assert [(phase.latency, len(flow.links), flow.alone) for phase in plan.phases for flow in phase.flows] == [
        (0.0, 0, float("inf"))
    ]


def test_an_unknown_fidelity() -> None:
    cluster = uniform(2, 1e9, 1e-6)
    with pytest.raises(SimulatorError, match=r'fidelity "packet" must be one of alpha_beta, flow, chunk'):
        Communicator(cluster, cluster.gpus, ideal(), "packet")


@pytest.mark.parametrize("library", [nccl(), gloo()], ids=["nccl", "gloo"])
def test_plans_by_another_transport_are_those_of_a_communicator_of_its_own(library):
    """What one communicator has found (rings, steps, choices of the tuning model) holds for other costs."""
    cluster = topologies.cluster({"preset": "dgx_a100_40gb", "nodes": 2})
    changed = replace(
        library,
        launch=library.launch + 1e-5,
        hop_latency={key: 2 * value for key, value in library.hop_latency.items()},
        efficiency={key: value / 3 for key, value in library.efficiency.items()},
    )
    first = Communicator(cluster, cluster.gpus, library)
    shared, alone = first.by(changed), Communicator(cluster, cluster.gpus, changed)
    for again in (shared, shared.by(changed)):
        for nbytes in (1e3, 1e6, 1e9):
            for ranks in (tuple(range(8)), tuple(range(8, 16)), tuple(range(16))):
                plans = [one.collective("all_reduce", "dp", ranks, nbytes) for one in (first, again, alone)]
                assert plans[1].alone == plans[2].alone != plans[0].alone
                assert [plan.protocol for plan in plans[1:]] == [plans[2].protocol] * 2
            assert again.send(0, 9, nbytes).alone == alone.send(0, 9, nbytes).alone
