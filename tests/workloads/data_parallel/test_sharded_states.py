"""ZeRO with groups: bytes by formula, memory by division, and the two-hop synchronisation of MiCS."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.data_parallel.sharded_states import STATES, Groups, GroupSizes, with_hybrid_axes
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.parallelism.zero import SHARDED, Zero, zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

RING = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")


def model(*counts):
    layers = [UnitLayer(f"layer {i}", 1.0, 2.0, count, 8.0) for i, count in enumerate(counts)]
    return Model("plain", layers, sample_bytes=0.0, precision="fp32", optimizer_seconds=0.0)


def replicas(what, ranks, micro_batches=1, **options):
    return compute(what, one_f_one_b(1, micro_batches), micro_batch_size=1, **options).replicate("dp", ranks)


def grouped(schedule, what, overlap=True, **sizes):
    made = zero(schedule, what, groups=Groups(**sizes), overlap=overlap, bucket=1e9)
    check(made)
    return made


def sent(schedule):
    """Bytes that each rank sends by rings, without the norm of the gradients."""
    ranks = schedule.mesh.world_size
    timeline = simulate(schedule, uniform(ranks, 1e6, 0.0, hosts=0), algorithms=RING)
    norms = sum(
        2 * (len(schedule.mesh.axes[op.over].groups[0]) - 1) / len(schedule.mesh.axes[op.over].groups[0]) * 4
        for op in schedule.programs[0].ops
        if isinstance(op, Collective) and op.name.endswith("norm")
    )
    return timeline.axis_bytes["dp"] / ranks - norms


@settings(deadline=None, max_examples=25)
@given(
    p=st.sampled_from([1, 2]),
    g=st.sampled_from([1, 2]),
    o=st.sampled_from([1, 2, 3]),
    n=st.sampled_from([1, 2]),
    micro_batches=st.integers(1, 2),
    overlap=st.booleans(),
)
def test_bytes_are_those_of_the_formula(p, g, o, n, micro_batches, overlap):
    gradients, states, ranks = p * g, p * g * o, p * g * o * n
    if ranks == 1:
        return
    counts = (960, 480)
    schedule = grouped(
        replicas(model(*counts), ranks, micro_batches),
        model(*counts),
        overlap,
        parameters=p,
        gradients=gradients,
        optimizer=states,
    )
    size = 4 * sum(counts)
    gathers = 2 * micro_batches * size * (p - 1) / p
    if gradients > 1:
        within = micro_batches * size * (gradients - 1) / gradients
        across = size * (states - gradients) / (states * gradients)
    else:
        within, across = 0.0, size * (states - 1) / states
    replicated = 2 * size * (ranks - states) / (ranks * states)
    updated = size * (states - p) / (states * p)
    assert sent(schedule) == pytest.approx(gathers + within + across + replicated + updated, rel=1e-9)


@pytest.mark.parametrize(
    ("stage", "sizes"),
    [(1, {"parameters": 1, "gradients": 1}), (2, {"parameters": 1}), (3, {})],
)
def test_groups_of_all_replicas_send_and_hold_what_a_stage_does(stage, sizes):
    what, base = model(960, 480), replicas(model(960, 480), 8, 2, optimizer="adam")
    made, plain = grouped(base, what, **sizes), zero(base, what, stage=stage)
    assert sent(made) == pytest.approx(sent(plain), rel=1e-9)
    held, whole = made.programs[0].resident, plain.programs[0].resident
    assert {name: nbytes for name, nbytes in held.items() if nbytes} == pytest.approx(
        {name: nbytes for name, nbytes in whole.items() if nbytes}
    )


def test_each_state_is_divided_by_its_own_group():
    what = model(1200)
    made = grouped(replicas(what, 12, optimizer="adam"), what, parameters=2, gradients=4, optimizer=12)
    held = made.programs[0].resident
    assert (held["parameters"], held["gradients"], held["optimizer"]) == (4 * 600, 4 * 300, 8 * 100)


def test_two_hops_of_mics():
    """In each backward pass within the group, across groups only in the last one (arXiv:2205.00119, figure 6)."""
    what = model(1200)
    made = grouped(replicas(what, 8, 3), what, parameters=4, gradients=4, optimizer=4)
    ops = [op for op in made.programs[0].ops if isinstance(op, Collective) and op.kind != "all_gather"]
    told = [(op.kind, op.over, op.nbytes) for op in ops if op.nbytes > 4]
    within = ("reduce_scatter", "dp.shard", 4800.0)
    assert told == [within, within, within, ("all_reduce", "dp.replica", 1200.0)]
    assert made.mesh.axes["dp.shard"].groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert made.mesh.axes["dp.replica"].groups == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"parameters": 3, "gradients": 4}, "groups.parameters = 3 does not divide groups.gradients .4.*; try 2 or 4"),
        (
            {"optimizer": 5, "gradients": 1, "parameters": 1},
            "groups.optimizer = 5 does not divide the replicas .8.*4 or 8",
        ),
        (
            {"parameters": 8, "gradients": 4, "optimizer": 4},
            "groups.parameters = 8 does not divide groups.gradients .4.",
        ),
    ],
)
def test_groups_that_are_not_nested_are_told(sizes, message):
    with pytest.raises(ScenarioError, match=message):
        Groups(**sizes).sizes(8)


def test_each_method_is_three_group_sizes():
    """DDP, ZeRO's stages (arXiv:1910.02054, figure 1), FSDP, and hybrid shards, on 8 replicas."""
    sizes = {stage: [GroupSizes.of(SHARDED[stage], 8).ranks(state) for state in STATES] for stage in SHARDED}
    assert sizes == {0: [1, 1, 1], 1: [1, 1, 8], 2: [1, 8, 8], 3: [8, 8, 8]}
    assert GroupSizes.of(STATES, 8, 4) == GroupSizes(4, 4, 4, 8) == Groups(**dict.fromkeys(STATES, 4)).sizes(8)
    assert GroupSizes.of(STATES, 8, 8) == GroupSizes.of(STATES, 8)


def test_groups_of_one_size_are_the_axes_of_a_hybrid():
    base = replicas(model(8), 8)
    made = GroupSizes.of(STATES, 8, 2).with_axes(base).mesh.axes
    assert made == with_hybrid_axes(base, 2).mesh.axes
    assert GroupSizes.of(STATES, 8).with_axes(base) == base


def test_a_state_that_no_ranks_share_is_not_divided_with_muon_either():
    """Ranks with whole optimizer states have whole matrices, so that none is gathered for the products of the step."""
    data = {"method": "zero", "groups": dict.fromkeys(STATES, 1)}
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 1},
            "model": {"preset": "gpt2", "num_layers": 1},
            "training": {"global_batch_size": 8, "precision": "bf16", "optimizer": "muon"},
            "parallelism": {"data": data},
        }
    )
    kinds = {op.kind for op in scenario.schedule().programs[0].ops if isinstance(op, Collective)}
    assert kinds == {"all_reduce"}


def test_groups_stand_in_place_of_the_stage():
    section = Zero(method="zero", groups={"parameters": 1, "gradients": 8})
    assert section.stage == 2
    assert Zero.model_validate(section.model_dump()) == section
    with pytest.raises(ValidationError, match="in place of stage, which is 1"):
        Zero(method="zero", stage=1, groups={"parameters": 8})
    with pytest.raises(ValidationError, match="leave hybrid away"):
        Zero(method="zero", hybrid=8, groups={"parameters": 1, "gradients": 1})
    with pytest.raises(ValidationError, match="take stage: 3 in place of groups"):
        Zero(method="zero", groups={"parameters": 4}, compression={"method": "zeropp"})


def test_a_scenario_with_groups_reports_its_shards(tmp_path):
    path = tmp_path / "mics.yaml"
    path.write_text(
        "version: 1\nname: mics\ncluster: {preset: dgx_a100_80gb, nodes: 2}\nmodel: {preset: gpt2}\n"
        "training: {global_batch_size: 32, micro_batch_size: 1, precision: fp16}\n"
        "parallelism: {data: {method: zero, groups: {parameters: 8, gradients: 8, optimizer: 8}}}\n"
    )
    result = Scenario.load(path).run()
    assert result.memory.peak.by_category["optimizer"] == pytest.approx(12 * 124_439_808 / 8, rel=1e-6)


def test_all_to_alls_of_codes_stay_within_one_group(tmp_path):
    path = tmp_path / "sign.yaml"
    path.write_text(
        "version: 1\ncluster: {preset: dgx_a100_80gb, nodes: 1}\nmodel: {preset: gpt2, num_layers: 1}\n"
        "training: {global_batch_size: 8, micro_batch_size: 1, precision: fp16}\n"
        "parallelism: {data: {method: zero, groups: {parameters: all}, compression: {method: sign}}}\n"
    )
    grouped = Scenario.load(path)
    staged = {"method": "zero", "stage": 3, "compression": {"method": "sign"}}
    of_stage = Scenario.load(path, {"parallelism.data": staged}).run().summary()
    assert grouped.run().summary()["traffic_bytes"] == pytest.approx(of_stage["traffic_bytes"])
    with pytest.raises(ScenarioError, match="sign is not possible here: hybrid shards need a second collective"):
        Scenario.load(path, {"parallelism.data.groups.gradients": 4, "parallelism.data.groups.parameters": 4}).run()


@pytest.mark.parametrize(
    ("stage", "groups"),
    [
        (0, {"parameters": 1, "gradients": 1, "optimizer": 1}),
        (1, {"parameters": 1, "gradients": 1}),
        (2, {"parameters": 1}),
        (3, {}),
    ],
)
def test_experts_are_divided_as_in_the_stage(stage, groups, tmp_path):
    """Ranks that hold the same experts share those states of which the groups are larger than one."""
    path = tmp_path / "experts.yaml"
    path.write_text(
        "version: 1\ncluster: {preset: dgx_a100_80gb, nodes: 1}\nmodel: {preset: switch_base, num_layers: 2}\n"
        "training: {global_batch_size: 16, micro_batch_size: 2, precision: fp16}\n"
        "parallelism: {ep: 2, data: {method: zero}}\n"
    )
    data = {"method": "zero", "overlap": True}
    grouped, staged = (
        Scenario.load(path, {"parallelism.data": {**data, **shards}}).run().summary()
        for shards in ({"groups": groups}, {"stage": stage})
    )
    for state in ("parameters", "optimizer"):
        held = [one["memory"]["by_category_bytes"][state] for one in (grouped, staged)]
        assert held[0] == pytest.approx(held[1])
    if stage in (0, 3):  # zero all-reduces in stages 1 and 2, as DeepSpeed; groups reduce-scatter
        assert grouped["traffic_bytes"]["dp"] == pytest.approx(staged["traffic_bytes"]["dp"])
