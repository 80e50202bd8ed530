"""ZeRO++: bytes by formula with each of its three parts, the second copy's memory, and what does not go together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.parallelism._parallelism import TrainingStep
from clustersim.workloads.parallelism.ddp import DistributedDataParallel
from clustersim.workloads.parallelism.fsdp import FullyShardedDataParallel
from clustersim.workloads.parallelism.zero import Zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.reductions.zeropp import GRADIENT_BYTES, WEIGHT_BYTES

RING = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}


def model(*counts):
    layers = [UnitLayer(f"layer {i}", 1.0, 2.0, count, 8.0) for i, count in enumerate(counts)]
    return Model("plain", layers, sample_bytes=0.0, precision="fp16", optimizer_seconds=0.0)


def compressed(what, ranks, method, **keys):
    section = {"zero": Zero, "fsdp": FullyShardedDataParallel}[method]
    stage = {"stage": 3} if method == "zero" else {}
    data = section(method=method, **stage, compression={"method": "zeropp", **keys})
    base = compute(what, one_f_one_b(1, 1), micro_batch_size=1, optimizer="adam").replicate("dp", ranks)
    made = data.apply(base, TrainingStep(what, 1, 1, gradient_dtype="fp16"))
    check(made)
    return made


@settings(deadline=None, max_examples=15)
@given(
    method=st.sampled_from(["zero", "fsdp"]),
    weights=st.booleans(),
    gradients=st.booleans(),
    node=st.sampled_from([1, 2, 4]),
    counts=st.lists(st.integers(1, 4).map(lambda n: 960 * n), min_size=1, max_size=3),
)
def test_bytes_are_those_of_the_formula(method, weights, gradients, node, counts):
    """A forward gather over all ranks, a backward gather in the node, and two all-to-alls."""
    ranks, elements = 8, sum(counts)
    keys = {"quantized_weights": weights, "quantized_gradients": gradients, "hpz_partition_size": node}
    schedule = compressed(model(*counts), ranks, method, **keys)
    timeline = simulate(schedule, uniform(ranks, 1e6, 0.0, hosts=0), algorithms=RING)
    width = WEIGHT_BYTES if weights else 2
    forward = elements * width * (ranks - 1) / ranks
    backward = elements * width * (node - 1) / node if node > 1 else forward
    hops = [(node, 1), (ranks // node, node)] if node > 1 else [(ranks, 1)]
    all_to_alls = sum(elements * GRADIENT_BYTES / shards * (group - 1) / group for group, shards in hops)
    reduced = all_to_alls if gradients else elements * 2 * (ranks - 1) / ranks
    norm = 2 * (ranks - 1) / ranks * 4
    assert timeline.axis_bytes["dp"] / ranks == pytest.approx(forward + backward + reduced + norm, rel=1e-9)


def test_between_nodes_a_quarter_of_the_bytes_of_zero_3():
    """0.75 M in place of 3 M, for M bytes of parameters (DeepSpeed's blog on ZeRO++), and the scales."""
    node, nodes, what = 8, 2, model(16 * 8000)
    schedule = compressed(what, node * nodes, "zero", hpz_partition_size=node)
    size, between = 2 * what.parameters, 0.0
    for op in schedule.programs[0].ops:
        if isinstance(op, Collective) and op.over in ("dp", "dp.replica") and op.nbytes > 4:
            between += op.nbytes * (1 if op.over == "dp" else node)
    assert between == pytest.approx(0.75 * size, rel=1e-3)


def test_the_second_copy_is_held_all_step():
    what = model(9600)
    with_copy = compressed(what, 8, "zero", hpz_partition_size=4).programs[0].resident["parameters"]
    without = compressed(what, 8, "zero", hpz_partition_size=1).programs[0].resident["parameters"]
    assert with_copy - without == pytest.approx(2 * 9600 / 4)


def test_kernels_quantise_a_shard_and_dequantise_all():
    schedule = compressed(model(9600), 8, "zero", hpz_partition_size=4, quantized_gradients=False)
    kernels = {op.name: op.kernels[0].nbytes for op in schedule.programs[0].ops if "quantise" in op.name}
    both = 9600 * (2 + WEIGHT_BYTES)
    assert kernels == pytest.approx(
        {
            "0F0.layer 0.gather.quantise": both / 8,
            "0F0.layer 0.gather.dequantise": both,
            "0B0.layer 0.gather.quantise": both / 4,
            "0B0.layer 0.gather.dequantise": both,
        }
    )


def test_what_does_not_go_together_is_told():
    with pytest.raises(
        ValidationError, match="compresses gathered parameters; take method: zero with stage: 3, or fsdp"
    ):
        DistributedDataParallel(method="ddp", compression={"method": "zeropp"})
    with pytest.raises(ValidationError, match="take method: zero with stage: 3"):
        Zero(method="zero", stage=2, compression={"method": "zeropp"})
    with pytest.raises(ScenarioError, match="hpz_partition_size = 3 does not divide dp = 8; try 2 or 4"):
        compressed(model(960), 8, "zero", hpz_partition_size=3)
    with pytest.raises(ScenarioError, match="needs no hybrid"):
        data = FullyShardedDataParallel(method="fsdp", hybrid=2, compression={"method": "zeropp"})
        base = compute(model(960), one_f_one_b(1, 1), micro_batch_size=1).replicate("dp", 8)
        data.apply(base, TrainingStep(model(960), 1, 1, gradient_dtype="fp16"))
