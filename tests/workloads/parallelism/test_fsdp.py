"""FSDP: what is gathered when and for how long, what each rank sends and holds, hybrid groups."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.memory import bound, curve
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.data_parallel.gradients import weights_by_stage
from clustersim.workloads.data_parallel.parameter_gathers import gathers
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.recompute import recompute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.fsdp import fsdp
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.gpipe import gpipe
from clustersim.workloads.pipelines.interleaved import interleaved
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.pipelines.zero_bubble_h1 import zero_bubble_h1

RING = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")


def model(*counts, precision="fp32"):
    layers = [UnitLayer(f"layer {i}", 1.0, 2.0, count, 8.0) for i, count in enumerate(counts)]
    return Model("plain", layers, sample_bytes=0.0, precision=precision, optimizer_seconds=0.0)


def one_stage(what, micro_batches=1, **options):
    return compute(what, one_f_one_b(1, micro_batches), micro_batch_size=1, **options)


def ordered(what, text):
    return compute(what, Order.parse(text), micro_batch_size=1)


def run(schedule, bandwidth=1e6):
    check(schedule)
    cluster = uniform(gpus=schedule.mesh.world_size, hosts=0, bandwidth=bandwidth, latency=0.0)
    return simulate(schedule, cluster, algorithms=RING)


def collectives(program, kind=None):
    return [op for op in program.ops if isinstance(op, Collective) and kind in (None, op.kind)]


def weights(program, what):
    """By layer."""
    return {one.name: one for own in weights_by_stage(program, what).values() for one in own}


def gathered_at_most(program, what, **options):
    """The layers that are gathered at once when most parameters are."""
    held, alive, most = weights(program, what), [], []
    for gather in sorted(gathers(program, held, **options), key=lambda one: one.issue):
        alive = [*(one for one in alive if one.last >= gather.issue), gather]
        most = max(most, alive, key=lambda those: sum(held[one.layer].parameters for one in those))
    return [held[one.layer] for one in most]


counts = st.lists(st.integers(0, 5000), min_size=1, max_size=5).filter(any)


@settings(deadline=None, max_examples=25)
@given(
    counts=counts,
    replicas=st.integers(2, 5),
    micro_batches=st.integers(1, 3),
    reshard=st.booleans(),
    prefetch=st.integers(0, 3),
    overlap=st.booleans(),
)
def test_traffic_of_each_rank(counts, replicas, micro_batches, reshard, prefetch, overlap):
    what = model(*counts)
    options = {"reshard": reshard, "prefetch": prefetch, "overlap": overlap, "gradient_norm": False}
    timeline = run(fsdp(one_stage(what, micro_batches), what, replicas, **options))
    share = (replicas - 1) / replicas * 4 * sum(counts)
    factor = (3 if reshard else 2) * micro_batches
    assert timeline.axis_bytes["dp"] / replicas == pytest.approx(factor * share, rel=1e-9)


@pytest.mark.parametrize("overlap", [True, False])
def test_without_sync_gradients_are_held_whole_and_reduced_once(overlap):
    """(2 m + 1) (d - 1) / d of the parameters' bytes; all gradients on each rank, where there is 1/d with sync."""
    what, replicas, micro_batches = model(3000, 4000, 2000), 3, 4
    options = {"overlap": overlap, "gradient_norm": False}
    plain, whole = (
        run(fsdp(one_stage(what, micro_batches), what, replicas, no_sync=no_sync, **options))
        for no_sync in (False, True)
    )
    share = (replicas - 1) / replicas * 4 * what.parameters
    assert plain.axis_bytes["dp"] / replicas == pytest.approx(3 * micro_batches * share)
    assert whole.axis_bytes["dp"] / replicas == pytest.approx((2 * micro_batches + 1) * share)
    held = [timeline.schedule.programs[0].resident["gradients"] for timeline in (plain, whole)]
    assert held == pytest.approx([4 * what.parameters / replicas, 4 * what.parameters])
    last = [op.action.micro_batch for op in collectives(whole.schedule.programs[0], "reduce_scatter")]
    assert last == [micro_batches - 1] * 3


@settings(deadline=None, max_examples=25)
@given(counts=counts, prefetch=st.integers(0, 3), micro_batches=st.integers(1, 2), bandwidth=st.floats(1e2, 1e6))
def test_no_layer_is_gathered_further_ahead_than_it_may(counts, prefetch, micro_batches, bandwidth):
    what = model(*counts)
    timeline = run(fsdp(one_stage(what, micro_batches), what, 2, prefetch=prefetch), bandwidth)
    spans = {span.op.name: span for span in timeline.spans(0)}
    issued = sorted((s for n, s in spans.items() if n.endswith("gather")), key=lambda span: span.begin)
    uses = [spans[span.op.name.removesuffix(".gather")] for span in issued]
    for place, (gather, use) in enumerate(zip(issued, uses, strict=True)):
        assert gather.end <= use.begin
        if place > prefetch:
            assert gather.begin >= uses[place - prefetch - 1].end


@settings(deadline=None, max_examples=25)
@given(counts=counts, prefetch=st.integers(0, 3), micro_batches=st.integers(1, 2), bandwidth=st.floats(1e2, 1e6))
def test_buffers_stay_within_the_layers_gathered_at_most_and_two_layers_of_gradients(
    counts, prefetch, micro_batches, bandwidth
):
    what = model(*counts)
    schedule = fsdp(one_stage(what, micro_batches), what, 2, prefetch=prefetch)
    program = schedule.programs[0]
    gathered = gathered_at_most(program, what, prefetch=prefetch)
    assert len(gathered) <= prefetch + 1
    two = sum(sorted(counts)[-2:])
    # freed at an end and allocated at the same end may meet in the last digit of time
    held = curve(run(schedule, bandwidth), 0).by_category["buffers"].max()
    assert held <= 4 * (sum(weights.parameters for weights in gathered) + two) * (1 + 1e-9)


def test_gathering_ahead_hides_it_behind_computation():
    what = model(*[10**6] * 6)
    slow, fast = (run(fsdp(one_stage(what, 2), what, 4, prefetch=p), 1e7) for p in (0, 1))
    assert fast.makespan < slow.makespan
    # at 0.3 s a gather and 1 s or more a layer only the first gather and the last reduction show
    (exposed,) = {round(fast.makespan - 2 * 6 * 3, 6)}
    assert exposed == pytest.approx(0.3 + 0.3, abs=1e-5)


def test_blocking_reductions_show_and_gathers_stay_hidden():
    what = model(*[10**6] * 6)
    each, hidden = (run(fsdp(one_stage(what, 2), what, 4, blocking=one), 1e7).makespan for one in (True, False))
    # 2 micro-batches of 6 layers, 0.3 s a reduction; the very last one shows either way
    assert each - hidden == pytest.approx(11 * 0.3, abs=1e-4)


def test_gathers_and_reductions_have_streams_of_their_own():
    what = model(*[1000] * 3)
    program = fsdp(one_stage(what), what, 2).programs[0]
    gathered, reductions = collectives(program, "all_gather"), collectives(program, "reduce_scatter")
    assert [op.stream for op in gathered] == ["compute"] + ["dp.gather"] * 5
    assert [op.stream for op in reductions] == ["dp.reduce"] * 3
    assert [op.name.split(".")[1] for op in gathered] == [f"layer {i}" for i in (0, 1, 2, 2, 1, 0)]
    assert {op.stream for op in collectives(fsdp(one_stage(what), what, 2, overlap=False).programs[0])} == {"compute"}


def test_states_are_sharded_and_layers_freed():
    what = model(1000, 3000, 2000)
    schedule = fsdp(one_stage(what, optimizer="adam"), what, 4, prefetch=1)
    assert schedule.programs[0].resident == {"parameters": 6000.0, "gradients": 6000.0, "optimizer": 12000.0}
    freed = {op.name: op.frees.get("buffers") for op in schedule.programs[0].ops if isinstance(op, Compute)}
    assert freed["0F0.layer 1"] == freed["0B0.layer 1"] == 12000.0
    kept = fsdp(one_stage(what, optimizer="adam"), what, 4, reshard=False).programs[0]
    freed = {op.name: op.frees.get("buffers") for op in kept.ops if isinstance(op, Compute)}
    assert (freed["0F0.layer 1"], freed["0B0.layer 1"]) == (None, 12000.0)
    assert sum(w.parameters for w in gathered_at_most(kept, what, reshard=False)) == 6000


def test_the_most_that_is_gathered_is_the_largest_neighbours():
    what = model(10, 500, 400, 20, 700)
    program = one_stage(what).programs[0]
    # the last layer is given up after its forward pass and gathered again meanwhile, for its backward pass
    assert [w.parameters for w in gathered_at_most(program, what)] == [700, 700]
    assert [w.parameters for w in gathered_at_most(program, what, prefetch=0)] == [700]


def test_recomputation_gathers_once_for_itself_and_the_backward_pass():
    what = model(1000, 1000)
    base = one_stage(what)
    ops = []
    for op in base.programs[0].ops:
        if op.action.phase == "B":
            action = op.action._replace(phase="R")
            ops.append(Compute(name=f"{action}.{op.layer}", action=action, layer=op.layer, kernels=op.kernels[:1]))
        ops.append(op)
    schedule = fsdp(base.map_programs(lambda program: replace(program, ops=tuple(ops))), what, 2)
    check(schedule)
    gathered = collectives(schedule.programs[0], "all_gather")
    assert [op.name for op in gathered] == [
        "0F0.layer 0.gather",
        "0F0.layer 1.gather",
        "0R0.layer 1.gather",
        "0R0.layer 0.gather",
    ]
    ops = {op.name: op for op in schedule.programs[0].ops}
    assert "0R0.layer 0.gather" in ops["0R0.layer 0"].after
    assert (ops["0R0.layer 0"].frees, ops["0B0.layer 0"].frees["buffers"]) == ({}, 4000.0)


def test_a_layer_cut_in_several_ops_is_gathered_before_the_first_and_freed_after_the_last():
    """As tensor parallelism leaves it: Computes, and collectives among them that need no weights."""
    what = model(1000, 1000)

    def cut(op):
        if not isinstance(op, Compute) or op.layer is None:
            return [op]
        exchange = Collective(
            name=f"{op.name}.tp", action=op.action, layer=op.layer, kind="all_gather", over="tp", nbytes=8.0
        )
        half = replace(op, name=f"{op.name}.half", allocates={}, frees={})
        return [exchange, half, op]

    base = one_stage(what).replicate("tp", 2)
    schedule = fsdp(base.map_programs(lambda program: program.map_ops(cut)), what, 2)
    run(schedule)
    ops = {op.name: op for op in schedule.programs[0].ops}
    assert "0F0.layer 1.gather" in ops["0F0.layer 1.half"].after
    assert "0F0.layer 1.gather" not in ops["0F0.layer 1"].after
    assert ops["0F0.layer 1"].frees["buffers"] == 4000.0
    assert ops["0B0.layer 1.half"].allocates["buffers"] == 4000.0
    assert ops["0B0.bucket0"].after == ("0B0.layer 1",)
    # two groups of tensor-parallel ranks each shard their own part
    assert schedule.mesh.axes["dp"].groups == ((0, 2), (1, 3))


def test_layers_still_there_are_not_gathered_again():
    what = model(1000)
    program = ordered(what, "0F0,0F1,0B0,0F2,0B1,0B2").programs[0]
    held = gathers(program, weights(program, what), reshard=False)
    assert [str(one.action) for one in held] == ["0F0", "0F2", "0B2"]


def test_an_update_makes_gathered_parameters_stale():
    what = model(1000)
    program = ordered(what, "0F0,0F1,0B0,0O0,0B1,0O1").programs[0]
    assert [str(one.action) for one in gathers(program, weights(program, what), reshard=False)] == ["0F0", "0B1"]
    schedule = fsdp(ordered(what, "0F0,0F1,0B0,0O0,0B1,0O1"), what, 2, reshard=False, prefetch=3)
    check(schedule)
    spans = {span.op.name: span for span in run(schedule).spans(0)}
    assert spans["0B1.layer 0.gather"].begin >= spans["0O0"].end


@settings(deadline=None, max_examples=15)
@given(counts=counts, shards=st.integers(2, 3), groups=st.integers(1, 3), micro_batches=st.integers(1, 2))
def test_hybrid_traffic(counts, shards, groups, micro_batches):
    what = model(*counts)
    schedule = fsdp(one_stage(what, micro_batches), what, shards * groups, hybrid=shards, gradient_norm=False)
    sent = run(schedule).axis_bytes["dp"] / (shards * groups)
    inside = 3 * (shards - 1) / shards
    across = 2 * (groups - 1) / groups / shards
    assert sent == pytest.approx(micro_batches * (inside + across) * 4 * sum(counts), rel=1e-9)


def test_hybrid_groups_shard_inside_and_replicate_across():
    what = model(1200)
    schedule = fsdp(one_stage(what, optimizer="adam"), what, 6, hybrid=2)
    check(schedule)
    assert schedule.mesh.axes["dp.shard"].groups == ((0, 1), (2, 3), (4, 5))
    assert schedule.mesh.axes["dp.replica"].groups == ((0, 2, 4), (1, 3, 5))
    assert schedule.programs[0].resident["optimizer"] == 1200 * 8 / 2
    (across,) = collectives(schedule.programs[0], "all_reduce")[:1]
    assert (across.over, across.nbytes) == ("dp.replica", 4 * 1200 / 2)


def test_hybrid_of_all_ranks_is_full_sharding():
    what = model(1200, 800)
    assert fsdp(one_stage(what), what, 4, hybrid=4) == fsdp(one_stage(what), what, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hybrid": 4}, "hybrid = 4 does not divide dp = 6; try 3 or 6"),
        ({"hybrid": 1}, "hybrid = 1 shards nothing"),
        ({"hybrid": 12}, "hybrid = 12 does not divide dp = 6; try 6"),
        ({"prefetch": -1}, "prefetch = -1 layers; it must be 0 or more"),
    ],
)
def test_what_cannot_be_is_told(options, message):
    with pytest.raises(ScenarioError, match=message):
        fsdp(one_stage(model(10)), model(10), 6, **options)


def test_one_replica_communicates_nothing():
    what = model(1000)
    base = one_stage(what, 2)
    assert fsdp(base, what, 1, hybrid=8).programs == base.programs


def test_zero_3_with_a_bucket_for_each_layer_is_fsdp():
    what = model(*[1000] * 4)
    base = one_stage(what, 2, optimizer="adam")
    assert zero(base, what, 4, stage=3, bucket=4000.0) == fsdp(base, what, 4)


def test_a_tied_copy_is_gathered_and_reduced_where_the_pipeline_holds_it():
    what = replace(model(5000, 1000, 100), tied_parameters=4000)
    stages = [what.layers[:1], what.layers[1:]]
    base = compute(what, one_f_one_b(2, 1), micro_batch_size=1, stages=stages)
    schedule = fsdp(base, what, 2)
    gathered = {op.name: op.nbytes for op in collectives(schedule.programs[1], "all_gather")}
    assert gathered["1F0.layer 2.gather"] == 4 * 4100
    assert sum(op.nbytes for op in collectives(schedule.programs[1], "reduce_scatter")) == 4 * 5100
    assert sum(op.nbytes for op in collectives(schedule.programs[0], "reduce_scatter")) == 4 * 5000


@pytest.mark.parametrize("options", [{}, {"reshard": False}, {"hybrid": 2}, {"prefetch": 2}, {"overlap": False}])
def test_the_bound_from_program_order_holds(options):
    what = model(1000, 4000, 2000, 3000)
    schedule = fsdp(one_stage(what, 2, optimizer="adam"), what, 4, **options)
    for bandwidth in (1e3, 1e5):
        held = curve(run(schedule, bandwidth), 0).total.max()
        assert held <= bound(schedule).peak.nbytes * (1 + 1e-12)


@given(
    st.sampled_from([one_f_one_b, gpipe, zero_bubble_h1, interleaved]),
    st.integers(1, 7),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["none", "full"]),
)
@settings(max_examples=60, deadline=None)
def test_templates_change_no_op(order, pairs, reshard, prefetch, overlap, how):
    """What is composed by template is, op for op, what is composed of programs that are written out."""
    what, options = model(3, 5, 2, 4), {"virtual_stages": 2} if order is interleaved else {}
    rows = order(2, 2 * pairs, **options)
    schedule = compute(what, rows, micro_batch_size=1, stages=stages_of(what, rows.stages))
    if how == "full":
        schedule = recompute(schedule, what, "full", micro_batch_size=1)
    chosen = {"reshard": reshard, "prefetch": prefetch, "overlap": overlap}
    by_template = fsdp(schedule, what, 2, **chosen)
    written = fsdp(schedule.map_programs(lambda program: program.materialise()), what, 2, **chosen)
    for one, other in zip(by_template.programs, written.programs, strict=True):
        assert tuple(one.ops) == tuple(other.ops)


def test_a_micro_batch_adds_few_templates():
    """Only what waits for another micro-batch, or is needed by one, is written out: no layers."""
    what = model(*[4] * 12)
    few, many = (fsdp(one_stage(what, number), what, 2).programs[0] for number in (8, 64))
    assert len(list(many.distinct())) - len(list(few.distinct())) <= 5 * (64 - 8)
    assert len(many.ops) - len(few.ops) == 60 * (64 - 8)


@pytest.mark.parametrize(("units", "gathered", "reduced"), [("none", 0, 0), ("flat", 0, 4), ("tensors", 2, 2)])
def test_copies_around_the_exchanges_of_a_unit(units, gathered, reduced):
    """Two layers, each gathered twice and reduced once: bytes that a rank copies, in bytes of their parameters."""
    schedule = fsdp(one_stage(model(1000, 3000)), model(1000, 3000), 2, units=units)
    (program,) = schedule.programs
    kernels = [kernel for op in program.computations() for kernel in op.kernels if kernel.operation]
    for name, passes, uses in (("copies of gathered parameters", gathered, 2), ("copies to buckets", reduced, 1)):
        moved = sum(kernel.nbytes for kernel in kernels if kernel.operation.name == name)
        assert moved == passes * uses * 4000 * 4
