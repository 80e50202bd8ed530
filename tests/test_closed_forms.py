"""The communication model against the closed forms of the alpha-beta theory, to 1e-9.

The cluster is `uniform` (each device has one full-duplex port into a crossbar) and the transport `ideal`, at each
fidelity. The closed forms are those of Thakur et al. 2005 and of the lecture's cost table, for random p, d, alpha and
beta. The 2 p d of a parameter server is not in the code: it must follow from sharing the server's port.
"""

from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform

FIDELITIES = st.sampled_from(["flow", "chunk", "alpha_beta"])
network = {
    "p": st.integers(2, 64),
    "d": st.floats(1.0, 1e10),
    "alpha": st.floats(0.0, 1e-3),
    "bandwidth": st.floats(1e6, 1e12),
    "fidelity": FIDELITIES,
}


def time(kind, p, d, alpha, bandwidth, fidelity, algorithm):
    """The time of one collective over all GPUs, s."""
    op = Collective(name=kind, kind=kind, over="dp", nbytes=d)
    schedule = Schedule(Mesh.regular({"dp": p}), (Program("all", (op,)),), (0,) * p)
    check(schedule)
    cluster = uniform(gpus=p, hosts=0, bandwidth=bandwidth, latency=alpha)
    return simulate(schedule, cluster, fidelity=fidelity, algorithms={kind: algorithm}).makespan


@settings(deadline=None, max_examples=60)
@given(**network)
def test_ring_all_reduce(p, d, alpha, bandwidth, fidelity):
    beta = 1 / bandwidth
    measured = time("all_reduce", p, d, alpha, bandwidth, fidelity, "ring")
    assert measured == pytest.approx(2 * (p - 1) * alpha + 2 * (p - 1) / p * beta * d, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(**network)
def test_ring_all_reduce_without_chunks(p, d, alpha, bandwidth, fidelity):
    measured = time("all_reduce", p, d, alpha, bandwidth, fidelity, "ring_unchunked")
    assert measured == pytest.approx((p - 1) * (alpha + d / bandwidth), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(kind=st.sampled_from(["all_gather", "reduce_scatter"]), **network)
def test_ring_all_gather_and_reduce_scatter(kind, p, d, alpha, bandwidth, fidelity):
    measured = time(kind, p, d, alpha, bandwidth, fidelity, "ring")
    assert measured == pytest.approx((p - 1) * alpha + (p - 1) / p * d / bandwidth, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(**(network | {"p": st.integers(2, 200)}))
def test_a_chain_fills_with_chunks(p, d, alpha, bandwidth, fidelity):
    """Of 8 chunks the first passes p - 1 hops, and the other 7 follow it."""
    for kind in ("broadcast", "reduce"):
        measured = time(kind, p, d, alpha, bandwidth, fidelity, "ring")
        assert measured == pytest.approx((p - 1) * alpha + (p + 6) / 8 * d / bandwidth, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(**(network | {"p": st.sampled_from([2, 4, 8, 16, 32, 64])}))
def test_halving_doubling_at_powers_of_two(p, d, alpha, bandwidth, fidelity):
    measured = time("all_reduce", p, d, alpha, bandwidth, fidelity, "halving_doubling")
    assert measured == pytest.approx(2 * log2(p) * alpha + 2 * (p - 1) / p * d / bandwidth, rel=1e-9)


def exchange(p, k, d):
    """A step of a parameter server with *k* servers that shard the vector: each broadcasts, then gathers the sum."""
    axes = {f"ps.{i}": Axis(((p + i, *range(p)),)) for i in range(k)}

    def op(kind, i):
        return Collective(
            name=f"{kind} {i}", kind=kind, over=f"ps.{i}", nbytes=d / k, stream=f"ps.{i}", algorithm="direct"
        )

    def pair(i):
        return op("broadcast", i), op("reduce", i)

    programs = [Program("GPU", tuple(o for i in range(k) for o in pair(i)))]
    programs += [Program(f"server {i}", pair(i), on="host") for i in range(k)]
    return Schedule(Mesh(p + k, axes), tuple(programs), (0,) * p + tuple(range(1, k + 1)))


@settings(deadline=None, max_examples=60)
@given(k=st.integers(1, 8), **(network | {"fidelity": st.sampled_from(["flow", "chunk"])}))
def test_parameter_server(p, k, d, alpha, bandwidth, fidelity):
    schedule = exchange(p, k, d)
    check(schedule)
    cluster = uniform(gpus=p, hosts=k, bandwidth=bandwidth, latency=alpha)
    measured = simulate(schedule, cluster, fidelity=fidelity).makespan
    # one server: 2 alpha + 2 p beta d
    assert measured == pytest.approx(2 * alpha + 2 * d / bandwidth * max(1, p / k), rel=1e-9)
