"""ZeRO against its paper: memory by table 1, traffic by section 7, and what each stage shards, sends and waits for."""

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.memory import curve
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import parameter_tensors
from clustersim.workloads.parallelism._sharding import owned_elements
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.parallelism.zero import SHARDED, Zero, zero, zero_buckets
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.software_stack import software
from tests.workloads.parallelism.zero_states import zero_state_bytes

DATA = Path(__file__).parents[3] / "../shared/data"
RING = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")


def model(*counts, precision="fp32", seconds=0.0):
    layers = [UnitLayer(f"layer {i}", 1.0, 2.0, count, 8.0) for i, count in enumerate(counts)]
    return Model("plain", layers, sample_bytes=0.0, precision=precision, optimizer_seconds=seconds)


def one_stage(what, micro_batches=1, **options):
    return compute(what, one_f_one_b(1, micro_batches), micro_batch_size=1, **options)


def run(schedule, bandwidth=1e6):
    check(schedule)
    cluster = uniform(gpus=schedule.mesh.world_size, hosts=0, bandwidth=bandwidth, latency=0.0)
    return simulate(schedule, cluster, algorithms=RING)


def collectives(program, kind=None):
    return [op for op in program.ops if isinstance(op, Collective) and kind in (None, op.kind)]


def table_rows():
    path = DATA / "zero_table1_memory.csv"
    if not path.exists():
        pytest.skip("the published tables are not beside the project")
    return list(csv.DictReader(path.open()))


def test_states_are_those_of_table_1():
    for row in table_rows():
        parameters, ranks = float(row["params_B"]), int(row["dp_degree"])
        closed = {1: 4 * parameters + 12 * parameters / ranks}
        closed |= {2: 2 * parameters + 14 * parameters / ranks, 3: 16 * parameters / ranks}
        columns = {1: ("Pos", "4P+12P/N"), 2: ("Pos_g", "2P+14P/N"), 3: ("Pos_g_p", "16P/N")}
        for stage, (name, formula) in columns.items():
            held = parameters * sum(zero_state_bytes(stage, ranks, "adam", "fp16").values())
            assert held == pytest.approx(closed[stage], rel=1e-12)
            assert held == pytest.approx(float(row[f"formula_{name}={formula}"]), abs=0.005001)
            printed = row[f"{name}_GB"]
            last_digit = 10.0 ** -len(printed.partition(".")[2])
            assert abs(held - float(printed)) <= last_digit


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_programs_hold_what_the_formulas_say(stage):
    what = model(700, 300, precision="fp16")
    schedule = zero(one_stage(what, optimizer="adam"), what, 4, stage=stage)
    states = {name: 1000 * nbytes for name, nbytes in zero_state_bytes(stage, 4, "adam", "fp16").items()}
    assert schedule.programs[0].resident == pytest.approx(states)


FACTOR = {0: lambda m: 2, 1: lambda m: 2, 2: lambda m: m + 1, 3: lambda m: 3 * m}


@settings(deadline=None, max_examples=25)
@given(
    counts=st.lists(st.integers(0, 5000), min_size=1, max_size=4).filter(any),
    replicas=st.integers(2, 5),
    micro_batches=st.integers(1, 3),
    stage=st.integers(0, 3),
    bucket=st.floats(1.0, 1e5),
    overlap=st.booleans(),
)
def test_traffic_of_each_rank(counts, replicas, micro_batches, stage, bucket, overlap):
    what = model(*counts)
    options = {"stage": stage, "bucket": bucket, "overlap": overlap, "gradient_norm": False}
    timeline = run(zero(one_stage(what, micro_batches), what, replicas, **options))
    share = (replicas - 1) / replicas * 4 * sum(counts)
    assert timeline.axis_bytes["dp"] / replicas == pytest.approx(FACTOR[stage](micro_batches) * share, rel=1e-9)


def test_gradients_may_be_wider_than_parameters():
    what = model(1000, 1000, precision="bf16")
    timeline = run(zero(one_stage(what), what, 4, stage=1, gradient_dtype="fp32", gradient_norm=False))
    assert timeline.axis_bytes["dp"] == pytest.approx(3 * 2000 * (4 + 2))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_norm_follows_the_last_reduction_and_precedes_the_update(stage):
    what = model(1000, 1000)
    schedule = zero(one_stage(what, 2), what, 3, stage=stage)
    ends = {span.op.name: span.end for span in run(schedule).spans(1)}
    if stage == 0:
        # every rank has all gradients
        assert "0O.norm" not in ends
        return
    reduced = [op.name for op in collectives(schedule.programs[0], "reduce_scatter")]
    assert max(ends[name] for name in reduced) < ends["0O.norm"] <= ends["0O"]
    with_norm, without = run(schedule), run(zero(one_stage(what, 2), what, 3, stage=stage, gradient_norm=False))
    assert with_norm.axis_bytes["dp"] - without.axis_bytes["dp"] == pytest.approx(4 * 2 * 2)


def test_a_bucket_closes_before_the_tensor_that_would_overflow_it():
    layers = [
        Weights(name, parameter_tensors(*own))
        for name, own in zip(("first", "second", "last"), ((30, 40), (50,), (20, 10)), strict=True)
    ]
    made = zero_buckets(layers, "fp32", 4 * 80)
    assert [(bucket.nbytes, bucket.layer) for bucket in made] == [(4 * 80, "second"), (4 * 70, "first")]


def test_buckets_are_of_half_a_billion_elements():
    what = model(400_000_000, 300_000_000, 200_000_001, precision="fp16")
    program = zero(one_stage(what), what, 8, stage=1).programs[0]
    reduced = [(op.nbytes, op.after) for op in collectives(program, "reduce_scatter")]
    assert reduced == [
        (2 * 200_000_001, ("0B0.layer 2",)),
        (2 * 300_000_000, ("0B0.layer 1",)),
        (2 * 400_000_000, ("0B0.layer 0",)),
    ]
    assert [op.nbytes for op in collectives(program, "all_gather")] == [1e9, 2 * 400_000_001]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_optimizer_updates_a_shard(stage):
    what = model(64 * 10**6, precision="fp16", seconds=None)
    base = one_stage(what, optimizer="adam")
    ((whole,),) = (op.kernels for op in base.programs[0].ops if op.name == "0O")
    ((part,),) = (op.kernels for op in zero(base, what, 4, stage=stage).programs[0].ops if op.name == "0O")
    assert part.nbytes == whole.nbytes / 4
    # 20,971,520 elements a launch
    assert (whole.launches, part.launches) == (4, 1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_overlap_is_faster_and_changes_no_traffic(stage):
    what = model(*[10**6] * 4)
    base = one_stage(what, 2)
    with_it, without = (run(zero(base, what, 4, stage=stage, bucket=4e6, overlap=o), 1e7) for o in (True, False))
    assert with_it.makespan < without.makespan
    assert with_it.axis_bytes == pytest.approx(without.axis_bytes)
    assert {op.stream for op in collectives(without.schedule.programs[0])} == {"compute"}
    # blocking, a step is the sum of its parts: each collective of d bytes takes a d / bandwidth
    seconds = {"all_reduce": 2 * 0.75, "all_gather": 0.75, "reduce_scatter": 0.75}
    parts = sum(seconds[op.kind] * op.nbytes / 1e7 for op in collectives(without.schedule.programs[0]))
    assert without.makespan == pytest.approx(2 * 4 * 3 + parts)


def test_a_bucket_waits_for_the_last_but_one():
    """Two buckets are unreduced at once, however slow the network."""
    what = model(*[10**6] * 8)
    timeline = run(zero(one_stage(what, 2), what, 2, stage=2, bucket=4e6), 1e6)
    held = curve(timeline, 0)
    assert held.by_category["buffers"].max() == 2 * 4e6


@pytest.mark.parametrize("stage", [1, 2])
def test_two_layers_more_than_a_bucket_are_never_unreduced(stage):
    what = model(*[10**6] * 8)
    timeline = run(zero(one_stage(what), what, 2, stage=stage, bucket=12e6), 1e6)
    assert curve(timeline, 0).by_category["buffers"].max() <= 2 * 12e6 + 4e6


def test_the_next_step_gathers_what_the_last_one_updated():
    what = model(1000, 1000, seconds=5.0)
    schedule = replace(zero(one_stage(what), what, 2, stage=3), steps=3)
    spans = list(run(schedule).spans(0))
    updates = [span.end for span in spans if span.op.name == "0O"]
    for step in (1, 2):
        begins = [s.begin for s in spans if s.step == step and s.op.name.endswith("gather")]
        assert min(begins) >= updates[step - 1]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_replica_communicates_nothing(stage):
    what = model(1000)
    base = one_stage(what, optimizer="adam")
    schedule = zero(base, what, 1, stage=stage)
    assert schedule.programs == base.programs
    assert schedule.mesh.axes["dp"].groups == ((0,),)


def test_there_are_four_stages():
    assert set(SHARDED) == {0, 1, 2, 3}
    with pytest.raises(ScenarioError, match=r"ZeRO has the stages 0, 1, 2 and 3, not 4"):
        zero(one_stage(model(10)), model(10), 2, stage=4)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_pipelines_shard_each_stage_over_its_own_replicas(stage, micro_batches):
    what = model(3000, 1000, 2000)
    layers = [what.layers[:2], what.layers[2:]]
    base = compute(what, one_f_one_b(2, micro_batches), micro_batch_size=1, stages=layers, optimizer="adam")
    base = pipeline_parallel(base, what, micro_batch_size=1)
    schedule = zero(base, what, 3, stage=stage, gradient_norm=False)
    timeline = run(schedule)
    # 6,000 parameters, held three times; ring all the same
    assert timeline.axis_bytes["dp"] == pytest.approx(FACTOR[stage](micro_batches) * 2 * 4 * 6000)
    assert timeline.axis_bytes["pp"] == 3 * micro_batches * 2 * 8
    share = sum(zero_state_bytes(stage, 3, "adam", "fp32").values())
    assert [sum(p.resident.values()) for p in schedule.programs] == pytest.approx([4000 * share, 2000 * share])
    assert schedule.mesh.axes["dp"].groups == ((0, 2, 4), (1, 3, 5))


def test_a_split_backward_is_reduced_after_its_weight_half_and_gathered_for_its_input_half():
    what = model(1000, 1000)
    base = compute(what, Order.parse("0F0,0I0,0F1,0W0,0I1,0W1"), micro_batch_size=1)
    schedule = zero(base, what, 2, stage=3)
    check(schedule)
    program = schedule.programs[0]
    assert {op.action.phase for op in collectives(program, "reduce_scatter")} == {"W"}
    assert {op.action.phase for op in collectives(program, "all_gather")} == {"F", "I"}
    given_up = [op for op in program.ops if "buffers" in op.frees and not isinstance(op, Collective)]
    assert {op.action.phase for op in given_up} == {"F", "I"}
    filled = [op for op in program.ops if "buffers" in op.allocates and not isinstance(op, Collective)]
    assert {op.action.phase for op in filled} == {"W"}


@pytest.mark.parametrize("stage", [0, 1])
def test_lower_stages_without_overlap_reduce_after_the_backward_pass(stage):
    """DeepSpeed reduces whole gradients bucket by bucket at the end; each bucket is copied to a flat buffer."""
    what = model(*[10**6] * 8)
    timeline = run(zero(one_stage(what, 2), what, 2, stage=stage, bucket=12e6, overlap=False, gradient_norm=False))
    names = [op.name for op in timeline.schedule.programs[0].ops]
    last = max(names.index(name) for name in names if name.startswith("0B1.layer"))
    reduced = [names.index(name) for name in names if ".bucket" in name]
    assert len(reduced) == 3
    assert min(reduced) == last + 1
    assert curve(timeline, 0).by_category["buffers"].max() == 12e6


def test_blocking_reductions_hold_up_no_other_stage():
    """Each stage of a pipeline reduces when its own backward passes are over: only the first stage's time shows."""
    what = model(*[10**6] * 4)
    cut = [what.layers[:2], what.layers[2:]]
    base = compute(what, one_f_one_b(2, 4), micro_batch_size=1, stages=cut)
    plain = pipeline_parallel(base, what, micro_batch_size=1)
    timeline = run(zero(plain, what, 2, stage=1, overlap=False, gradient_norm=False))
    # (m + p - 1)(F + B), then a reduce-scatter and an all-gather of the stage's 8 MB over two ranks
    messages = 2 * 8 / 1e6
    assert timeline.makespan == pytest.approx((4 + 1) * 6 + 2 * 8e6 / 2 / 1e6, abs=4 * messages)


def test_each_step_of_an_asynchronous_order_waits_for_its_own_gradients():
    what = model(1000, 1000)
    base = compute(what, Order.parse("0F0,0B0,0O0,0F1,0B1,0O1"), micro_batch_size=1)
    program = zero(base, what, 2, stage=1, bucket=1.0).programs[0]
    updates = {op.name: op.after for op in program.ops if op.action.phase == "O" and not isinstance(op, Collective)}
    assert updates == {"0O0": ("0B0.bucket1",), "0O1": ("0B1.bucket1",)}
    assert [op.name for op in collectives(program, "all_gather")] == ["0O0.gather0", "0O1.gather0"]


def test_reductions_of_a_stream_keep_the_order_of_their_layers():
    what = model(*[1000] * 5)
    program = zero(one_stage(what), what, 2, stage=2, bucket=1.0).programs[0]
    reduced = [op.after[0] for op in collectives(program, "reduce_scatter")]
    numbers = [int(name.rpartition(" ")[2]) for name in reduced]
    assert all(before > after for before, after in pairwise(numbers))


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 3), (2, 4)])
def test_parameters_may_be_gathered_beside_the_forward_pass_that_they_are_for(stages, micro_batches):
    what = model(1000, 3000)
    cut = [what.layers] if stages == 1 else [what.layers[:1], what.layers[1:]]
    order = compute(what, one_f_one_b(stages, micro_batches), micro_batch_size=1, stages=cut)
    plain = pipeline_parallel(order, what, micro_batch_size=1)
    behind, ahead = (
        zero(plain, what, 2, stage=1, gradient_norm=False, software=Software(gather_ahead=one)) for one in (False, True)
    )
    slow, quick = run(behind), run(ahead)
    assert quick.axis_bytes["dp"] == pytest.approx(slow.axis_bytes["dp"])
    for number, program in enumerate(ahead.programs):
        rank = ahead.ranks_of(number)[0]
        spans = {span.op.name: span for span in quick.spans(rank)}
        for gather in collectives(program, "all_gather"):
            layer = gather.name.removesuffix(".gather")
            first = min((s for s in spans.values() if s.op.layer == layer), key=lambda span: span.begin)
            assert gather.name in first.op.after
            assert first.begin >= spans[gather.name].end
    # the second layer's gather is hidden behind the first layer's forward pass
    if stages == 1:
        assert slow.makespan - quick.makespan == pytest.approx(3000 * 4 / 2 / 1e6, rel=1e-6)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_stack_may_all_reduce_gradients(stage, micro_batches):
    # all-reduced gradients pass twice as often: 2 (d - 1) / d of a step's reductions, and the gather of parameters
    what = model(700, 300)
    timeline = run(
        zero(
            one_stage(what, micro_batches),
            what,
            4,
            stage=stage,
            software=Software(zero_gradients="all_reduce"),
            gradient_norm=False,
        )
    )
    reductions = micro_batches if stage == 2 else 1
    assert timeline.axis_bytes["dp"] / 4 == pytest.approx((2 * reductions + 1) * 3 / 4 * 4 * 1000)


@given(tensors=st.lists(st.integers(1, 1000), min_size=1, max_size=30), ranks=st.integers(1, 40))
def test_tensors_go_one_by_one_to_the_rank_that_has_the_least(tensors, ranks):
    held = [0] * ranks
    for count in sorted(tensors, reverse=True):
        held[held.index(min(held))] += count
    found = owned_elements(tensors, ranks)
    assert found == [elements for elements in held if elements]
    assert len(found) == min(ranks, len(tensors))


@pytest.mark.parametrize(("replicas", "broadcasts"), [(2, 2), (4, 3)])
def test_owners_broadcast_what_they_updated(replicas, broadcasts):
    what = model(700, 300, 500, precision="fp16")
    schedule = zero(one_stage(what), what, replicas, stage=1, software=Software(zero_parameters="broadcast"))
    own = collectives(schedule.programs[0], "broadcast")
    assert len(own) == broadcasts
    assert sum(op.nbytes for op in own) == 2 * 1500
    assert not collectives(schedule.programs[0], "all_gather")
    run(schedule)


def test_groups_of_a_hybrid_share_states_and_all_reduce_gradients():
    what = model(700, 300, precision="fp16")
    schedule = zero(one_stage(what, optimizer="adam"), what, 8, stage=1, hybrid=2)
    program = schedule.programs[0]
    assert program.resident["optimizer"] == 12 * 1000 / 2
    (reduced,) = collectives(program, "all_reduce")[:1]
    assert (reduced.over, reduced.nbytes) == ("dp", 2 * 1000)
    assert {op.over for op in collectives(program, "all_gather")} == {"dp.shard"}
    assert len(schedule.mesh.axes["dp.shard"].groups) == 4
    check(schedule)
    with pytest.raises(ScenarioError, match="hybrid = 3 does not divide dp = 8; try 2 or 4"):
        zero(one_stage(what), what, 8, stage=1, hybrid=3)


def test_a_group_of_all_replicas_is_no_hybrid():
    what = model(700, 300)
    base = one_stage(what)
    assert zero(base, what, 4, stage=1, hybrid=4) == zero(base, what, 4, stage=1)


@pytest.mark.parametrize(
    ("stack", "dtypes"),
    [
        ("megatron_deepspeed", ["fp32", "fp32", "bf16", "bf16"]),  # a bf16 optimizer of its own, until 2022
        ("deepspeed", ["fp32", "bf16", "bf16", "bf16"]),  # get_data_types of 2023: with ZeRO as the model
        ("huggingface_deepspeed", ["fp32", "bf16", "bf16", "bf16"]),
        ("megatron_core", ["fp32", "fp32", "bf16", "bf16"]),
    ],
)
def test_gradients_of_bf16_have_the_type_that_the_engine_gives_them(stack: str, dtypes: list[str]) -> None:
    found = [Zero(method="zero", stage=stage).gradient_dtype("bf16", software(stack)) for stage in range(4)]
    assert found == dtypes
