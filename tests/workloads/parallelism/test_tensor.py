"""Tensor and sequence parallelism: what is exchanged, phase by phase, and what each rank computes and holds."""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.metrics import model_flops
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.reading.errors import ScenarioError, ScheduleError
from clustersim.simulator.reading.lookup import function
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.simulator.simulate import simulate
from clustersim.topologies import cluster
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.recompute import recompute
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.model import Layer, OperatorLayer
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism._tied_embeddings import tied_embeddings
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.fsdp import fsdp
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.parallelism.tensor import sharded, tensor_parallel
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.software_stack import software

DATA = Path(__file__).parents[3] / "../shared/data"
SHAPE = Shape(2, 256, 128, 1024, SelfAttention(8, 8), Mlp(1024), precision="bf16")
GPT = transformer(SHAPE)
LLAMA = transformer(
    replace(
        SHAPE,
        attention=SelfAttention(8, 8, bias=False),
        mlp=Mlp(1024, "swiglu", bias=False),
        norm=Norm("rmsnorm"),
        embedding=Embedding(positions="rope", tied=False),
        dropout=False,
    )
)
BERT = transformer(replace(SHAPE, embedding=Embedding(norm=True, type_rows=2), head="pretraining"))
S, H, V, B = 128, 256, 1024, 2
FULL = 2 * B * S * H
"""Bytes of b s h activations."""

WHOLE, SPLIT = Order.parse("0F0,0B0"), Order.parse("0F0,0I0,0W0")


def parallel(
    degree,
    what=GPT,
    order=WHOLE,
    sequence_parallel=False,
    overlap=0.0,
    asynchronous=False,
    samples=B,
    by_columns=False,
    **options,
):
    share = sharded(what, degree, sequence_parallel=sequence_parallel, by_columns=by_columns)
    stages, beside = stages_of(share, order.stages), {"tp": Overlap(overlap, asynchronous)}
    schedule = compute(share, order, micro_batch_size=samples, optimizer="adam", stages=stages, overlap=beside)
    schedule = tensor_parallel(schedule, share, degree, **options)
    check(schedule)
    return schedule


def exchanged(schedule, layer, phase):
    """How often each (kind, bytes) over tp in a phase of a layer."""
    ops = (op for op in schedule.programs[0].ops if isinstance(op, Collective) and op.over == "tp")
    return Counter((op.kind, op.nbytes) for op in ops if (op.layer, op.action and op.action.phase) == (layer, phase))


@pytest.mark.parametrize("degree", [2, 8])
@pytest.mark.parametrize("what", [GPT, LLAMA, BERT])
def test_two_all_reduces_forward_and_two_backward(degree, what):
    """Shoeybi et al. 2019 (arXiv:1909.08053), figure 4."""
    schedule = parallel(degree, what)
    for layer in ("layer 0", "layer 1"):
        assert exchanged(schedule, layer, "F") == exchanged(schedule, layer, "B") == {("all_reduce", FULL): 2}


@pytest.mark.parametrize("degree", [2, 8])
@pytest.mark.parametrize("what", [GPT, LLAMA, BERT])
def test_sequence_parallelism_gathers_and_scatters(degree, what):
    """Korthikanti et al. 2022 (arXiv:2205.05198), figure 5; inputs of products cut by columns are gathered again."""
    schedule = parallel(degree, what, sequence_parallel=True)
    for layer in ("layer 0", "layer 1"):
        assert exchanged(schedule, layer, "F") == {("all_gather", FULL): 2, ("reduce_scatter", FULL): 2}
        assert exchanged(schedule, layer, "B") == {("all_gather", FULL): 4, ("reduce_scatter", FULL): 2}


WIDE = 2 * B * S * 4 * H
"""Bytes of the activations between the two products of the feed-forward block."""


@pytest.mark.parametrize("degree", [2, 8])
@pytest.mark.parametrize("what", [GPT, LLAMA, BERT])
def test_products_cut_by_columns_have_an_exchange_each(degree, what):
    """Input and output of each second product are gathered; backward, each of the four products sums its input's."""
    schedule = parallel(degree, what, by_columns=True)
    for layer in ("layer 0", "layer 1"):
        assert exchanged(schedule, layer, "F") == {("all_gather", FULL): 3, ("all_gather", WIDE): 1}
        expected = {("all_reduce", FULL): 2, ("reduce_scatter", FULL): 1, ("reduce_scatter", WIDE): 1}
        assert exchanged(schedule, layer, "B") == expected


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("by_columns", [False, True])
def test_bytes_on_the_wire_of_both_splits(degree, by_columns):
    """An all-gather or a reduce-scatter of d bytes sends (p - 1) d in all, an all-reduce twice as much."""
    schedule, ends = parallel(degree, by_columns=by_columns), parallel(degree)
    network = uniform(gpus=degree, hosts=0, bandwidth=1e9, latency=0.0)
    sent = simulate(schedule, network).axis_bytes["tp"]
    outside = sum(
        op.nbytes for op in ends.programs[0].ops if isinstance(op, Collective) and op.layer in ("embedding", "head")
    )
    gathers_and_scatters = 3 * FULL + WIDE + (2 * 2 + 1) * FULL + WIDE
    each = gathers_and_scatters if by_columns else 2 * 4 * FULL
    assert sent == pytest.approx((degree - 1) * (2 * each + 2 * outside))


def test_products_cut_by_columns_compute_and_hold_as_much():
    rows, columns = (parallel(4, by_columns=flag) for flag in (False, True))

    def layer_flops(schedule):
        ops = [op for op in schedule.programs[0].ops if isinstance(op, Compute) and op.layer == "layer 0"]
        return sum(kernel.flops for op in ops for kernel in op.kernels)

    assert layer_flops(rows) == layer_flops(columns)
    share, other = (sharded(GPT, 4, by_columns=flag).layers[1] for flag in (False, True))
    # biases of the second products are cut too
    assert share.parameters - other.parameters == 2 * (H - H // 4)
    # inputs of the second products are kept whole
    assert other.activation_bytes(B) - share.activation_bytes(B) == (FULL + WIDE) * 3 / 4


def test_a_degree_must_divide_the_columns():
    what = transformer(replace(SHAPE, attention=SelfAttention(8, 8), hidden_size=100))
    assert sharded(what, 8)
    with pytest.raises(ScenarioError, match="tp = 8 does not divide the 100 hidden_size of transformer; try 5 or 10"):
        sharded(what, 8, by_columns=True)


def test_a_split_backward_splits_what_is_exchanged():
    plain, sequence = parallel(4, order=SPLIT), parallel(4, order=SPLIT, sequence_parallel=True)
    assert exchanged(plain, "layer 0", "I") == {("all_reduce", FULL): 2}
    assert exchanged(plain, "layer 0", "W") == {}
    assert exchanged(sequence, "layer 0", "I") == {("all_gather", FULL): 2, ("reduce_scatter", FULL): 2}
    assert exchanged(sequence, "layer 0", "W") == {("all_gather", FULL): 2}


@pytest.mark.parametrize("sequence", [False, True])
def test_recomputation_exchanges_as_the_forward_pass_does(sequence):
    what = sharded(GPT, 4, sequence_parallel=sequence)
    schedule = recompute(parallel(4, sequence_parallel=sequence), what, "full", micro_batch_size=B)
    assert exchanged(schedule, "layer 1", "R") == exchanged(schedule, "layer 1", "F")


def test_embedding_and_loss_are_parallel_over_the_vocabulary():
    numbers = ("all_reduce", 4 * B * S)
    plain, sequence = parallel(4), parallel(4, sequence_parallel=True)
    assert exchanged(plain, "embedding", "F") == {("all_reduce", FULL): 1}
    assert exchanged(plain, "embedding", "B") == {}
    assert exchanged(plain, "head", "F") == {numbers: 3}
    assert exchanged(plain, "head", "B") == {("all_reduce", FULL): 1}
    # position vectors are added to the whole sum, which is then cut (Megatron-LM)
    assert exchanged(sequence, "embedding", "F") == {("all_reduce", FULL): 1}
    assert exchanged(sequence, "embedding", "B") == {("all_gather", FULL): 1}
    assert exchanged(sequence, "head", "F") == {numbers: 3, ("all_gather", FULL): 1}
    assert exchanged(sequence, "head", "B") == {("all_gather", FULL): 1, ("reduce_scatter", FULL): 1}
    rotary = parallel(4, LLAMA, sequence_parallel=True)
    assert exchanged(rotary, "embedding", "F") == {("reduce_scatter", FULL): 1}


@pytest.mark.parametrize(("what", "each", "outside"), [(GPT, 6 * H, 2 * H), (LLAMA, 2 * H, H)])
def test_gradients_of_norms_are_summed_over_the_sequence(what, each, outside):
    """Two norms and, with biases, those after the products cut by rows; and the final norm."""
    (op,) = [op for op in parallel(4, what, sequence_parallel=True).programs[0].ops if op.name.startswith("0O.")]
    assert (op.kind, op.nbytes) == ("all_reduce", 2 * (2 * each + outside))
    wide = parallel(4, what, sequence_parallel=True, gradient_dtype="fp32").programs[0].ops
    assert wide[-2].nbytes == 2 * op.nbytes
    assert not [op for op in parallel(4, what).programs[0].ops if op.name.startswith("0O.")]


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("what", [GPT, LLAMA, BERT])
def test_flops_of_the_ranks_sum_to_those_of_the_model(what, sequence):
    # but for BERT's head, whose transform and next-sentence task every rank computes
    schedule = parallel(4, what, sequence_parallel=sequence)
    ops = [op for op in schedule.programs[0].ops if op.layer and op.layer != "head" and isinstance(op, Compute)]
    flops = 4 * sum(kernel.flops for op in ops for kernel in op.kernels)
    layers = [layer for layer in what.layers if layer.kind != "head"]
    whole = sum(k.flops for layer in layers for k in (*layer.forward(B), *layer.backward(B)))
    assert flops == pytest.approx(whole, rel=1e-12)
    if what is not BERT:
        assert model_flops(schedule) == pytest.approx(what.flops(B), rel=1e-12)


class Silent(OperatorLayer):
    """A layer that exchanges nothing."""

    segments = Layer.segments


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("order", [WHOLE, SPLIT, one_f_one_b(2, 3)])
def test_a_rank_computes_and_holds_its_share(order, sequence, overlap):
    """Kernels, optimizer step, states and activations are those of the sharded layers without their exchanges."""
    cut = parallel(4, GPT, order, sequence_parallel=sequence, overlap=overlap)
    share = sharded(GPT, 4, sequence_parallel=sequence)
    layers = [Silent(one.name, one.kind, one.operators, one.sample_output_bytes) for one in share.layers]
    share = replace(share, layers=layers)
    alone = compute(share, order, micro_batch_size=B, optimizer="adam", stages=stages_of(share, order.stages))
    for one, other in zip(cut.programs, alone.programs, strict=True):
        assert one.resident == pytest.approx(other.resident)
        assert one.ops[-1].kernels == other.ops[-1].kernels
        for whole in other.ops[:-1]:
            parts = [op for op in one.ops if (op.action, op.layer) == (whole.action, whole.layer)]
            computes = [op for op in parts if isinstance(op, Compute)]
            assert parts[-1].name == whole.name
            assert (computes[0], computes[-1]) == (parts[0], parts[-1])
            assert Counter(k for op in computes for k in op.kernels) == Counter(whole.kernels)
            assert parts[0].allocates.get("activations") == whole.allocates.get("activations")
            assert parts[-1].frees.get("activations") == whole.frees.get("activations")


def test_one_rank_exchanges_nothing():
    schedule = compute(GPT, WHOLE, micro_batch_size=B)
    share = sharded(GPT, 1, sequence_parallel=True)
    assert share is GPT
    assert tensor_parallel(schedule, share, 1).programs == schedule.programs
    free = unit_model(3, 1.0, 2.0)
    assert tensor_parallel(compute(sharded(free, 1), WHOLE, micro_batch_size=1), free, 1).mesh.world_size == 1


def test_what_cannot_be_cut_is_told():
    free = unit_model(3, 1.0, 2.0)
    with pytest.raises(
        ScenarioError, match="tp = 2: tensor parallelism needs a transformer, and unit is not one; try 1"
    ):
        sharded(free, 2)
    with pytest.raises(ScenarioError, match="tp = 3 does not divide the 8 heads of transformer; try 2 or 4"):
        parallel(3)
    with pytest.raises(ScheduleError, match=r"overlap = 1.5: must be between 0"):
        parallel(2, overlap=1.5)
    with pytest.raises(ScenarioError, match="tp = 8 does not divide seq_length = 100, which sequence parallelism"):
        parallel(8, transformer(replace(SHAPE, seq_length=100)), sequence_parallel=True)


def simulated(schedule, ranks, bandwidth=1e9, latency=0.0, flops=1e12):
    accelerator = Accelerator(peak_flops=flops, memory_bandwidth=1e12)
    cluster = uniform(ranks, bandwidth, latency, hosts=0, accelerator=accelerator)
    return simulate(schedule, cluster, algorithms={"all_reduce": "ring"})


@settings(deadline=None, max_examples=15)
@given(
    t=st.sampled_from([2, 4, 8]), sequence=st.booleans(), overlap=st.sampled_from([0.0, 0.3, 1.0]), m=st.integers(1, 3)
)
def test_traffic_is_that_of_rings(t, sequence, overlap, m):
    """Of n bytes an all-reduce sends 2 (t - 1) n in all, a gather and a scatter (t - 1) n each."""
    schedule = parallel(t, order=one_f_one_b(1, m), sequence_parallel=sequence, overlap=overlap)
    layers, numbers = 2, 3 * 4 * B * S
    if sequence:
        vectors = layers * (4 + 6) + (2 + 1) + (1 + 2)
        expected = m * (t - 1) * (vectors * FULL + 2 * numbers) + 2 * (t - 1) * 2 * (layers * 6 * H + 2 * H)
    else:
        expected = m * 2 * (t - 1) * ((4 * layers + 1 + 1) * FULL + numbers)
    assert simulated(schedule, t).axis_bytes["tp"] == pytest.approx(expected)


def test_blocking_exchanges_add_up():
    """Time is that of the kernels and, over rings at 1 GB/s, 2 (t - 1) / t n for each all-reduce."""
    schedule = parallel(4)
    seconds = Accelerator(peak_flops=1e12, memory_bandwidth=1e12).seconds
    computing = sum(seconds(op.kernels) for op in schedule.programs[0].ops if isinstance(op, Compute))
    sent = 2 * 3 / 4 * (10 * FULL + 3 * 4 * B * S)
    assert simulated(schedule, 4).step_time == pytest.approx(computing + sent / 1e9)


@pytest.mark.parametrize("sequence", [False, True])
def test_the_more_runs_beside_the_less_it_takes(sequence):
    made = [parallel(4, sequence_parallel=sequence, overlap=overlap) for overlap in (False, 0.5, True)]
    times = [simulated(schedule, 4, bandwidth=8e9).step_time for schedule in made]
    assert times[0] > times[1] > times[2]
    # where exchanges take no time nothing is gained
    times = [simulated(schedule, 4, bandwidth=1e30).step_time for schedule in made]
    assert times == pytest.approx(times[:1] * 3)


@pytest.mark.parametrize("sequence", [False, True])
def test_an_overlapped_layer_takes_the_longer_of_each_pair(sequence):
    """Over slow links each product that has an exchange vanishes behind it, and nothing else does."""
    seconds = Accelerator(peak_flops=1e12, memory_bandwidth=1e12).seconds
    layers = sharded(GPT, 4, sequence_parallel=sequence).layers
    segments = [segment for layer in layers for phase in "FB" for segment in layer.segments(phase, B)]
    beside = [one.kernels for one in segments if any(exchange.divisible for exchange in one.exchanges)]
    # of a layer two products forward and two backward; with sequences cut all eight, and two weight gradients
    assert len(beside) == (2 * 10 + 3 if sequence else 2 * 4 + 1)
    schedules = [parallel(4, sequence_parallel=sequence, overlap=overlap) for overlap in (False, True)]
    times = [simulated(schedule, 4, bandwidth=1e6).step_time for schedule in schedules]
    assert times[0] - times[1] == pytest.approx(sum(map(seconds, beside)), rel=1e-6)


@pytest.mark.parametrize("sequence", [False, True])
def test_asynchronous_exchanges_stand_beside_the_weight_gradients(sequence):
    """As much is exchanged, forward passes block as before, and the backward pass is no slower."""
    what = transformer(replace(SHAPE, num_layers=1))
    blocking, beside = (
        parallel(2, what, sequence_parallel=sequence, asynchronous=flag, samples=4) for flag in (False, True)
    )

    def exchanged(schedule, stream=None):
        ops = (op for op in schedule.programs[0].ops if isinstance(op, Collective) and stream in (None, op.stream))
        return Counter((op.kind, op.action.phase if op.action else "", op.nbytes) for op in ops)

    assert exchanged(blocking) == exchanged(beside)
    assert {phase for _, phase, _ in exchanged(beside, "tp")} == {"B"}
    # a column-cut product each in attention, feed-forward block and head
    assert sum(exchanged(beside, "tp").values()) == 3 * (2 if sequence else 1)
    assert simulated(beside, 2, latency=1e-3).step_time < simulated(blocking, 2, latency=1e-3).step_time


def test_gathered_inputs_are_buffers_for_as_long_as_they_are_used():
    schedule = parallel(4, sequence_parallel=True)
    held = 0.0
    for op in schedule.programs[0].ops:
        held += op.allocates.get("buffers", 0)
        assert held <= 2 * FULL
        held -= op.frees.get("buffers", 0)
    assert held == 0
    assert max(op.allocates.get("buffers", 0) for op in schedule.programs[0].ops) == FULL


TIMED = {  # sequence parallelism, recomputation
    "baseline no recompute": (False, "none"),
    "sequence parallelism": (True, "none"),
    "full recompute (baseline)": (False, "full"),
    "selective recompute": (False, "selective"),
    "selective + sequence": (True, "selective"),
}


@pytest.mark.parametrize("name", TIMED)
def test_a_layer_takes_about_as_long_as_korthikanti_measured(name):
    """Table 4: one layer of the 22B model over 8 A100 of a node, micro-batches of 4."""
    path = DATA / "korthikanti_table4_layer_timing_22B.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not here; published measurements are not part of the project")
    with path.open() as file:
        published = {next(iter(row.values())): row for row in csv.DictReader(file)}[name]
    sequence, how = TIMED[name]
    what = transformer(replace(model("gpt_22b", "bf16").shape, num_layers=1))
    schedule = parallel(8, what, sequence_parallel=sequence, asynchronous=True, samples=4)
    schedule = recompute(schedule, sharded(what, 8, sequence_parallel=sequence), how, micro_batch_size=4)
    node = cluster({"preset": "dgx_a100_80gb", "nodes": 1})
    timeline = simulate(schedule, node, transport=nccl(), software=software("megatron"))
    took = Counter()
    for span in timeline.spans(0):
        if span.op.layer == "layer 0" and span.op.stream == "compute":
            took[span.op.action.phase] += 1e3 * (span.end - span.begin)
    assert took["F"] == pytest.approx(float(published["forward_ms"]), rel=0.05)
    assert took["R"] + took["B"] == pytest.approx(float(published["backward_ms"]), rel=0.05)


@pytest.mark.parametrize("how", ["none", "full"])
@pytest.mark.parametrize("data", [data_parallel, zero, fsdp])
@pytest.mark.parametrize("name", ["one_f_one_b", "interleaved", "zero_bubble_v", "dual_pipe_v"])
def test_three_dimensions_compose(name, data, how):
    order = function("clustersim.workloads.pipelines", name)(2, 4)
    what = transformer(replace(SHAPE, num_layers=order.stages))
    share = sharded(what, 2, sequence_parallel=True)
    schedule = parallel(2, what, order, sequence_parallel=True, overlap=0.5, samples=1)
    schedule = pipeline_parallel(schedule, share, micro_batch_size=1)
    schedule = tied_embeddings(schedule, share)
    schedule = recompute(schedule, share, how, micro_batch_size=1)
    schedule = data(schedule, share, 2).arranged("tp", "dp", "pp")
    check(schedule)
    assert schedule.mesh.world_size == 8
    assert tuple(sorted(schedule.mesh.axes["tp"].groups)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert simulated(schedule, 8, latency=1e-6).step_time > 0


def test_a_head_on_the_sequence_exchanges_nothing_but_its_weight_gradient():
    """Its logits and its loss are those of a shard of the positions, so that nothing is gathered or summed for them."""
    model = transformer(replace(SHAPE, embedding=Embedding(tied=False)))
    whole, share = model.layers[-1], sharded(model, 4, sequence_parallel=True, sequence_head=True).layers[-1]
    assert not any(segment.exchanges for phase in "FB" for segment in share.segments(phase, B))
    assert share.parameters == whole.parameters
    assert all("tp" in tensor.reduced_over for tensor in share.tensors)
    flops = [sum(kernel.flops for kernel in layer.forward(B)) for layer in (whole, share)]
    assert flops[0] == 4 * flops[1]
    assert share.activation_bytes(B) == whole.activation_bytes(B) / 4


def test_a_head_on_the_sequence_needs_a_weight_of_its_own():
    with pytest.raises(ScenarioError, match="tp_head: sequence needs tie_embeddings: false"):
        sharded(GPT, 4, sequence_parallel=True, sequence_head=True)
