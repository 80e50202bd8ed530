"""Lists of tensors: what is sent stays, one collective for each tensor, and the host works for each rank's slice."""

import pytest

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.data_parallel.parameter_gathers import per_tensor
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.recompute import recompute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

SECONDS = 1e-3


def model(*counts):
    layers = [UnitLayer(f"layer {i}", 1.0, 2.0, count, 8.0) for i, count in enumerate(counts)]
    return Model("plain", layers, sample_bytes=0.0, precision="fp32", optimizer_seconds=0.0)


def sharded(what, replicas, how="none", **options):
    schedule = recompute(compute(what, one_f_one_b(1, 1), micro_batch_size=1), what, how, micro_batch_size=1)
    return zero(schedule, what, replicas, stage=3, gradient_norm=False, **options)


def step_seconds(schedule):
    check(schedule)
    gpus = schedule.mesh.world_size
    return simulate(schedule, uniform(gpus=gpus, hosts=0, bandwidth=1e15, latency=0.0)).makespan


def gathers(schedule):
    return [op for op in schedule.programs[0].ops if isinstance(op, Collective) and op.kind == "all_gather"]


@pytest.mark.parametrize("stream", ["compute", "dp.gather"])
def test_a_list_is_sent_tensor_by_tensor(stream):
    buffers = {"buffers": 70.0}
    memory = {"allocates": buffers, "frees": buffers}
    op = Collective(name="g", kind="all_gather", over="dp", nbytes=70.0, stream=stream, after=("x",), **memory)
    host, *parts = per_tensor(op, (40.0, 20.0, 10.0), SECONDS)
    assert isinstance(host, Compute)
    assert host.after == ("x",)
    assert sum(kernel.seconds or 0.0 for kernel in host.kernels) == pytest.approx(3 * SECONDS)
    assert [part.nbytes for part in parts] == [40.0, 20.0, 10.0]
    assert [part.allocates for part in parts] == [buffers, {}, {}]
    assert [part.frees for part in parts] == [{}, {}, buffers]
    assert parts[-1].name == "g"
    assert all(part.after == (() if stream == "compute" else (host.name,)) for part in parts)


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_the_host_takes_its_time_for_each_rank_and_tensor(replicas):
    # of each layer one tensor, gathered in F and in B and reduced after it
    what = model(200_000, 300_000)
    slow, quick = (
        step_seconds(sharded(what, replicas, software=Software(slice_seconds=one))) for one in (SECONDS, 0.0)
    )
    assert slow - quick == pytest.approx(replicas * 2 * 3 * SECONDS, rel=1e-6)


def test_layers_beyond_the_limits_are_gathered_for_each_pass_and_not_ahead():
    small, large = model(10**6, 10**6), model(2 * 10**9, 2 * 10**9)
    assert len(gathers(sharded(small, 2, "full"))) == 2 + 2
    schedule = sharded(large, 2, "full")
    assert len(gathers(schedule)) == 2 + 2 + 2
    names = [op.name for op in schedule.programs[0].ops]
    for place, name in enumerate(names[:-1]):
        if name.endswith(".gather"):
            assert names[place + 1].startswith(name.removesuffix(".gather"))
