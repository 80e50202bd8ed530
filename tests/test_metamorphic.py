"""Better hardware is never slower where theory says so, and the same seed gives the same timeline."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

ALGORITHMS = st.sampled_from(["ring", "tree", "halving_doubling", "direct"])


def all_reduce(p, d, algorithm, fidelity, bandwidth, latency):
    op = Collective(name="reduce", kind="all_reduce", over="dp", nbytes=d)
    schedule = Schedule(Mesh.regular({"dp": p}), (Program("all", (op,)),), (0,) * p)
    cluster = uniform(gpus=p, hosts=0, bandwidth=bandwidth, latency=latency)
    return simulate(schedule, cluster, fidelity=fidelity, algorithms={"all_reduce": algorithm}).makespan


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 16), st.floats(1, 1e9), ALGORITHMS, st.sampled_from(["alpha_beta", "flow", "chunk"]))
def test_half_the_bandwidth_or_twice_the_latency_is_never_faster(p, d, algorithm, fidelity):
    base = all_reduce(p, d, algorithm, fidelity, 10e9, 5e-6)
    assert all_reduce(p, d, algorithm, fidelity, 5e9, 5e-6) >= base
    assert all_reduce(p, d, algorithm, fidelity, 10e9, 10e-6) >= base


def ddp(p, layers, forward, backward, variation=None, fidelity="flow"):
    model = unit_model(layers, forward, backward, parameters=layers * 10_000_000)
    schedule = compute(model, one_f_one_b(1, 2), micro_batch_size=1)
    schedule = data_parallel(schedule, model, p)
    check(schedule)
    cluster = uniform(gpus=p, hosts=0, bandwidth=10e9, latency=5e-6)
    return simulate(schedule, cluster, fidelity=fidelity, variation=variation)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 6), st.integers(1, 5), st.floats(1e-3, 0.1), st.floats(1.0, 3.0), st.data())
def test_a_straggler_never_helps(p, layers, forward, slowdown, data):
    rank = data.draw(st.integers(0, p - 1))
    base = ddp(p, layers, forward, 2 * forward).step_time
    assert ddp(p, layers, forward, 2 * forward, Variation(stragglers={rank: slowdown})).step_time >= base - 1e-12


def spans(timeline):
    return [list(timeline.spans(rank)) for rank in range(timeline.world_size)]


def test_equal_seeds_give_equal_timelines_and_different_seeds_different_ones():
    runs = [ddp(4, 3, 0.01, 0.02, Variation(seed=seed, jitter=0.1)) for seed in (7, 7, 8)]
    assert spans(runs[0]) == spans(runs[1])
    assert spans(runs[0]) != spans(runs[2])


def test_jitter_has_mean_1_and_the_given_coefficient_of_variation():
    factors = Variation(seed=1, jitter=0.2).factors(0, 1, 200_000)
    assert factors.mean() == pytest.approx(1.0, abs=3e-3)
    assert factors.std() == pytest.approx(0.2, rel=2e-2)


def test_overlap_hides_communication_behind_the_backward_pass():
    model = unit_model(8, 0.01, 0.02, parameters=80_000_000)
    cluster = uniform(gpus=4, hosts=0, bandwidth=10e9, latency=5e-6)
    base = compute(model, one_f_one_b(1, 1), micro_batch_size=1)
    times = [simulate(data_parallel(base, model, 4, overlap=o), cluster).step_time for o in (True, False)]
    alone = 8 * 0.03
    # 320 MB: without overlap 1.5 d beta = 48 ms after the backward pass; with overlap only the time of the last bucket
    assert times[1] == pytest.approx(alone + 6 * 5e-6 + 1.5 * 320e6 / 10e9)
    assert alone < times[0] < times[1]
    assert times[0] == pytest.approx(alone + 6 * 5e-6 + 1.5 * 40e6 / 10e9)
