"""What a plan may vary, and why candidates are rejected."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.alternatives.candidate import DIVISIBILITY, GPUS, RULES, Candidate, Rejected
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.defaults import to_plan
from clustersim.scenarios.search.planner import Planner, loaded
from clustersim.simulator.reading.errors import ScenarioError
from tests.scenarios.search.jobs import job


def values(space: Space, key: str) -> set[object]:
    return {str(candidate.values.get(key)) for candidate in space.candidates()}


def test_auto_is_what_each_parallelism_declares() -> None:
    space = Space(job())
    assert values(space, "tp") == {"1", "2", "4"}, "divisors of a node"
    assert values(space, "pp") == {"1", "2", "4"}, "divisors of the GPUs, up to the layers"
    assert values(space, "schedule") == {"1f1b", "interleaved"}
    assert values(space, "recompute") == {"none", "full"}, "flash attention stores no scores to recompute"
    assert values(space, "micro_batch_size") == {"1", "2", "4", "8", "16", "32"}
    assert values(Space(job(model={"attention": "unfused"})), "recompute") == {"none", "selective", "full"}


def test_a_key_without_meaning_has_one_value() -> None:
    for candidate in Space(job()).candidates():
        if candidate.values["pp"] == 1:
            assert candidate.values["schedule"] == "1f1b"
            assert candidate.values["virtual_stages"] is None
        if candidate.values["tp"] == 1:
            assert candidate.values["sequence_parallel"] is False
        if candidate.values["schedule"] == "1f1b":
            assert candidate.values["virtual_stages"] is None


def test_keys_that_are_not_searched_keep_their_values() -> None:
    space = Space(job({"tp": [1, 2]}, parallelism={"pp": 2}, training={"micro_batch_size": 2, "recompute": "full"}))
    candidates = list(space.candidates())
    assert [candidate.values["tp"] for candidate in candidates] == [1, 2]
    assert all("pp" not in candidate.values for candidate in candidates)
    for candidate in candidates:
        made = space.scenario_of(candidate)
        assert made.derived.degree("pp") == 2
        assert made.derived.micro_batch_size == 2


def test_lists_are_tried_as_given() -> None:
    search = {"pp": [2], "schedule": ["gpipe", "zero_bubble_h1"], "data": ["ddp", {"method": "zero", "stage": 1}]}
    space = Space(job(search))
    assert values(space, "schedule") == {"gpipe", "zero_bubble_h1"}
    assert len(list(space.candidates())) == 4


def test_keys_of_the_data_section_go_to_methods_that_have_them() -> None:
    space = Space(job({"data": "auto"}, parallelism={"data": {"method": "zero", "stage": 1, "bucket": "40 MB"}}))
    found = {candidate.values["data"]["method"]: candidate.values["data"] for candidate in space.candidates()}
    assert found["ddp"]["bucket"] == "40 MB"
    assert "bucket" not in found["fsdp"]


def test_experts_that_do_not_divide_a_stage_are_rejected_before_any_price() -> None:
    sizes = {"hidden_size": 64, "num_layers": 4, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 512}
    model = {"kind": "transformer", **sizes, "num_experts": 8, "moe_router_topk": 2}
    space = Space(job({"pp": [1, 2], "ep": [4, 8]}, model=model))
    told = "ep x expert_tp = 8 x 1 = 8 does not divide the 4 ranks of a pipeline stage; try ep = 4"
    rejected = set()
    for candidate in space.candidates():
        try:
            space.variant(candidate)
        except Rejected as error:
            assert (error.kind, error.why) == (DIVISIBILITY, told)
            rejected.add((candidate.values["pp"], candidate.values["ep"]))
    assert rejected == {(2, 8)}


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"tp": 4, "pp": 4}, GPUS, "tp 4 x pp 4 = 16 does not divide the 8 GPUs"),
        ({"tp": 3}, GPUS, "tp 3 = 3 does not divide the 8 GPUs"),
        ({"micro_batch_size": 16}, DIVISIBILITY, "32 is not a multiple of micro_batch_size 16 x dp 8"),
        ({"micro_batch_size": 3}, DIVISIBILITY, "32 is not a multiple of micro_batch_size 3"),
        ({"pp": 8}, DIVISIBILITY, "8 stages"),
        ({"pp": 2, "data": {"method": "zero", "stage": 2}}, RULES, "DeepSpeed refuses ZeRO-2 with a pipeline"),
        ({"sequence_parallel": True}, RULES, "belongs to tensor parallelism"),
    ],
)
def test_rules_reject_with_a_reason(changes: dict[str, object], kind: str, told: str) -> None:
    space = Space(job({"tp": [1], "pp": [1], "data": "auto", "micro_batch_size": [1], "sequence_parallel": [False]}))
    first = next(space.candidates())
    with pytest.raises(Rejected) as error:
        space.variant(first.changed(**changes))
    assert error.value.kind == kind
    assert told in error.value.why or ("layers" in error.value.why and "8" in error.value.why)


def test_a_variant_is_the_scenario_of_the_candidate() -> None:
    space = Space(job())
    for candidate in list(space.candidates())[::17]:
        try:
            variant = space.variant(candidate)
        except Rejected:
            continue
        made = space.scenario_of(candidate)
        assert made.derived == variant.derived
        assert made.specification.parallelism == variant.specification.parallelism
        assert made.specification.training == variant.specification.training


def test_a_given_number_of_replicas_follows_the_degrees() -> None:
    space = Space(job({"tp": [1, 2]}, parallelism={"dp": 4, "pp": 2}))
    replicas = [space.scenario_of(candidate).derived.replicas for candidate in space.candidates()]
    assert replicas == [4, 2]


def test_candidates_in_words() -> None:
    values = {"tp": 4, "sequence_parallel": True, "pp": 2, "schedule": "interleaved", "virtual_stages": 2}
    one = Candidate({**values, "data": {"method": "zero", "stage": 1}, "micro_batch_size": 1, "recompute": "full"})
    assert one.name == "tp 4 sp, pp 2 interleaved x2, zero 1, micro-batch 1, recompute full"
    assert one.differences(one.changed(tp=2)) == {"tp": 4}


def test_what_cannot_be_planned() -> None:
    with pytest.raises(ScenarioError, match="measures a collective"):
        Space(Scenario.load("allreduce_dgx_a100"))
    with pytest.raises(ScenarioError, match="has variants"):
        Space(Scenario.load("naive_vs_ddp"))
    with pytest.raises(ScenarioError, match="give one number, or auto"):
        Planner(
            Scenario.load("hello", {"parallelism.pp": 2, "parallelism.dp": [3, 1], "training.global_batch_size": 48})
        )


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"search": {"tq": [1]}}, "plan.search.tq: cannot be searched; it must be tp, sequence_parallel"),
        ({"search": {"tp": []}}, "plan.search.tp: must be auto or a list of values"),
        ({"search": {"tp": 2}}, "plan.search.tp: must be auto or a list of values, not 2"),
        ({"search": {"tp": [0]}}, "plan.search.tp.0: must be at least 1"),
        ({"search": {"tp": [1, 1]}}, "plan.search.tp.1: 1 stands twice"),
        ({"search": {"schedule": ["1f2b"]}}, "plan.search.schedule.0: must be 1f1b"),
        ({"search": {"data": ["zerro"]}}, "plan.search.data.0: must be ddp, diloco, federated, fsdp"),
        ({"search": {"recompute": ["some"]}}, "plan.search.recompute.0: must be none, selective, full or optimal"),
        ({"method": "exhaustif"}, "plan.method: must be"),
        ({"objective": "money"}, "plan.objective: must be step_time"),
        ({"simulate": 0}, "plan.simulate: must be a whole number, at least 1"),
        ({"memory_margin": 1.5}, "plan.memory_margin"),
    ],
)
def test_faults_of_the_section_name_the_key(plan: dict[str, object], told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        job(plan=plan)
    assert told in str(error.value)


def test_activations_on_the_host_are_searched_by_a_word() -> None:
    """`auto` needs recompute none or optimal; the plan with both is the fastest that fits."""
    cluster = {"preset": "uniform", "gpus": 1, "hosts": 1, "bandwidth": "25 GB/s", "latency": "5 us"}
    wide = {"preset": "gpt3_175b", "num_layers": 8, "hidden_size": 4096, "num_attention_heads": 32}
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {**cluster, "accelerator": {"preset": "a100_40gb", "memory": "26 GB"}},
            "model": {**wide, "attention": "flash"},
            "training": {"global_batch_size": 4, "precision": "bf16", "optimizer": "sgd"},
            "software": "megatron",
            "plan": {
                "search": {"recompute": ["none", "full", "optimal"], "offload": ["none", "auto"]},
                "simulate": "all",
            },
        }
    )
    best = Planner(scenario).best()[0]
    assert best.candidate.name == "recompute optimal, offload auto"


PATIENT = '''"""All forwards, then all backwards."""

from clustersim.simulator.schedule.pipeline_order import Action, Order


def patient(stages: int, micro_batches: int) -> Order:
    """Keep the activations of all micro-batches."""
    return Order(
        tuple(tuple(Action(phase, s, m) for phase in "FB" for m in range(micro_batches)) for s in range(stages))
    )
'''


def test_a_new_order_is_searched_without_registration(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(PATIENT)
    folder = importlib.import_module("clustersim.workloads.pipelines").__path__
    folder.append(str(tmp_path))
    try:
        space = Space(job({"pp": [2], "schedule": "auto"}))
        assert values(space, "schedule") == {"1f1b", "interleaved", "patient"}
        candidate = next(one for one in space.candidates() if one.values["schedule"] == "patient")
        assert space.variant(candidate).derived.degree("pp") == 2
    finally:
        folder.remove(str(tmp_path))
        sys.modules.pop("clustersim.workloads.pipelines.patient", None)


def test_experts_long_sequences_and_overlap_are_searched_where_they_are() -> None:
    mixtral = Space(Scenario.load("mixtral_8x7b_dgx_h100"))
    assert mixtral.choices("ep", {"tp": 1, "cp": 1}) == [1, 2, 4, 8]
    long = next(iter(Scenario.load("llama3_8b_131k_32h100").variants.values()))
    assert Space(long).choices("cp", {"tp": 1}) == [1, 2, 4, 8, 16, 32]
    assert Space(job()).choices("cp", {"tp": 1}) == [1]
    assert Space(job()).choices("tp_overlap", {"tp": 2, "sequence_parallel": True}) == [False]
    data = to_plan("llama3_8b", "dgx_h100", 1, 64)
    hopper = Space(Scenario.model_validate(data))
    assert hopper.choices("tp_overlap", {"tp": 2, "sequence_parallel": True}) == [True, False]
    assert hopper.choices("precision", {}) == ["bf16", {"matmul": "fp8", "rest": "bf16"}]


def test_each_candidate_has_the_stack_of_run() -> None:
    space = Space(Scenario.model_validate(to_plan("llama3_8b", "dgx_h100", 1, 64)))
    plain = Candidate({"tp": 1, "pp": 1, "data": {"method": "fsdp"}, "micro_batch_size": 1})
    for candidate in (plain, plain.changed(tp=2, data={"method": "zero", "stage": 1})):
        variant, made = space.variant(candidate), space.scenario_of(candidate)
        assert variant.stack == made.stack
        assert variant.software == made.software
    assert {space.variant(plain).stack, variant.stack} == {"fsdp_sdpa", "megatron_core"}
    with pytest.raises(Rejected, match="fsdp_sdpa, the default, has no fp8"):
        space.variant(plain.changed(precision={"matmul": "fp8", "rest": "bf16"}))


def test_a_file_whose_own_replicas_do_not_divide_the_batch_is_planned(tmp_path: Path) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(
        "version: 1\ncluster: {preset: dgx_a100_80gb, nodes: 128}\nmodel: {preset: gpt3_175b}\n"
        "training: {global_batch_size: 1536, micro_batch_size: 1}\nparallelism: {}\n"
    )
    space = Space(loaded(str(path)))
    candidate = Candidate({"tp": 8, "pp": 8, "micro_batch_size": 1})
    assert space.variant(candidate).derived.replicas == 16
    with pytest.raises(ScenarioError, match="1536 is not a multiple of micro_batch_size 1 x dp 1024"):
        loaded(str(path), ["plan.search.micro_batch_size=[1]"])
