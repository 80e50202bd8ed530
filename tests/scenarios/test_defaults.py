"""Defaults of what a user leaves open: all doors take the same, and what fits is taken."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from clustersim.scenarios.alternatives.candidate import Rejected
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.memory_need import memory_need
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.defaults import defaults, open_keys, to_plan
from clustersim.scenarios.estimates import layout_memory, logged_step, machine
from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from tests.samples import sample
from tests.scenarios.exchange.formats.configurations import MODELS
from tests.scenarios.exchange.formats.expert_configurations import EXPERT_MODELS


def scenario_from(model: str, cluster: str, nodes: int, batch: int, settings: Sequence[str] = ()) -> Scenario:
    return Scenario.model_validate(to_plan(model, cluster, nodes, batch, settings=settings), list(settings))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("batch", "replicas"), [(48, 16), (36, 4), (7, 1)])
def test_a_batch_need_not_be_a_multiple_of_the_gpus(batch: int, replicas: int) -> None:
    scenario = scenario_from("gpt2_xl", "dgx_a100_80gb", 2, batch)
    assert scenario.derived.replicas == replicas
    # the candidates use all GPUs
    space, found = Space(scenario), 0
    for candidate in space.candidates():
        try:
            variant = space.variant(candidate)
        except Rejected:
            continue
        found += 1
        assert variant.derived.ranks == 16
    assert found or batch == 7


def test_settings_change_the_cluster_that_counts() -> None:
    assert scenario_from("gpt2", "dgx_a100_80gb", 2, 48, settings=["cluster.node.accelerators=2"]).derived.replicas == 4


def test_an_unknown_cluster_is_told() -> None:
    with pytest.raises(ScenarioError, match='unknown cluster "dgx"'):
        scenario_from("gpt2", "dgx", 2, 48)


QWEN = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
}


def test_a_configuration_is_read_by_its_family(tmp_path: Path) -> None:
    path = tmp_path / "qwen" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(QWEN))
    scenario = scenario_from(str(path), "dgx_a100_80gb", 1, 8)
    assert scenario.name == "qwen-1xdgx_a100_80gb"
    assert scenario.model is not None
    # queries, keys and values of Qwen 2 have biases, which its configuration does not say
    assert [tensor.count for tensor in scenario.model.layers[1].tensors][:3] == [896, 896 * 896, 896]
    path.write_text(json.dumps({**QWEN, "model_type": "quen"}))
    with pytest.raises(ScenarioError, match=r'config\.json:1:16: model_type: unknown family "quen"'):
        scenario_from(str(path), "dgx_a100_80gb", 1, 8)


DOORS = (
    *("llama2_7b", "llama2_70b", "llama3_8b", "llama3_70b", "llama3_2_1b", "deepseek_llm_67b", "mistral_7b"),
    *(
        "qwen2_7b",
        "qwen2_0_5b",
        "qwen3_8b",
        "qwen3_0_6b",
        "gpt2",
        "gpt2_xl",
        "bert_large",
        "bloom_560m",
        "mixtral_8x7b",
    ),
    *("deepseek_v2_lite", "qwen3_30b_a3b", "t5_small", "flan_t5_xxl"),
)
"""Models with a published config.json, below and above the size from which states are sharded."""

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "first_k_dense_replace")


def _taken(scenario: BuiltScenario) -> dict[str, object]:
    specification = scenario.specification
    training, parallelism = specification.training, specification.parallelism
    assert training is not None
    return {
        "software": scenario.stack,
        "precision": training.precision,
        "method": parallelism.data.method,
        "recompute": training.recompute,
        "tp": parallelism.tp,
        "micro-batch": scenario.derived.micro_batch_size,
        "batch": training.global_batch_size,
        "transport": specification.network.transport,
    }


@pytest.mark.parametrize("model", sample(DOORS, 6, heavy=["deepseek_v2_lite", "gpt2_xl"]))
def test_all_doors_take_the_same_defaults(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = {**MODELS, **EXPERT_MODELS}[model][0]
    # few layers: what doors differ in does not depend on their number
    Path("config.json").write_text(json.dumps({k: min(v, 2) if k in LAYERS else v for k, v in config.items()}))
    cluster = ("dgx_h100", "zhores", "dgx_a100_80gb")[DOORS.index(model) % 3]
    expected = _taken(Scenario.of_model("config.json", cluster))
    assert run(["init", "mine.yaml", "--model", "config.json", "--cluster", cluster, "--nodes", "1"]) == 0
    assert _taken(Scenario.load("mine.yaml")) == expected
    assert _taken(imported(["config.json"], Options(cluster, 1), "x").scenario) == expected
    assert _taken(layout_memory("config.json", machine(cluster, 1, None)).scenario) == expected
    step = logged_step("config.json", machine(cluster, 1, None), 1.0, 16)
    assert step.scenario.specification.training.precision == expected["precision"]  # type: ignore[union-attr]
    planned = scenario_from("config.json", cluster, 1, len(Scenario.load("mine.yaml").cluster().gpus))
    same = ("precision", "method", "software", "transport")
    assert [_taken(planned)[key] for key in same] == [expected[key] for key in same]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {"method": "fsdp", "recompute": "full", "software": "fsdp_sdpa"}),
        (["parallelism.tp=8"], {"method": "zero", "recompute": "none", "software": "megatron"}),
        (["parallelism.pp=4"], {"method": "zero", "recompute": "full", "software": "megatron"}),
        (["training.recompute=none"], {"recompute": "none"}),
        (["parallelism.data={method: zero, stage: 3}"], {"method": "zero", "software": "huggingface_deepspeed"}),
        (["training.precision=fp32"], {"precision": "fp32"}),
    ],
)
def test_what_is_given_holds_and_the_rest_fits(given: list[str], expected: dict[str, str]) -> None:
    scenario = Scenario.of_model("llama3_8b", "dgx_a100_40gb", 2, settings=given)
    taken = _taken(scenario)
    assert {key: taken[key] for key in expected} == expected
    fits = memory_need(scenario, scenario.schedule()).fits
    assert fits or given[0].startswith("training"), given


def test_a_model_that_does_not_fit_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "big.yaml"
    assert run(["init", str(file), "--model", "gpt_neox_20b", "--cluster", "zhores", "--nodes", "1"]) == 0
    assert "DOES NOT FIT, the least of the usual layouts; take more nodes" in capsys.readouterr().out
    assert (
        run(["init", str(tmp_path / "fits.yaml"), "--model", "llama3_70b", "--cluster", "dgx_h100", "--nodes", "8"])
        == 0
    )
    assert ": fits" in capsys.readouterr().out
    assert run(["check", str(tmp_path / "fits.yaml")]) == 0
    assert ": fits" in capsys.readouterr().out


def test_few_micro_batches_need_what_many_do() -> None:
    data = open_keys("gpt2_large", "dgx_h100", 1)
    for settings in ([], ["parallelism.data={method: zero, stage: 2}"], ["parallelism.tp=2"]):
        found = defaults(data, settings)
        scenario = Scenario.model_validate(found.added_to(data), settings)
        need = memory_need(scenario, scenario.schedule())
        assert scenario.derived.micro_batches > 2
        assert found.need.nbytes == pytest.approx(need.nbytes, rel=1e-12)


def test_a_plan_begins_with_what_run_takes_for_the_layout_that_is_searched() -> None:
    search = ["plan.search.tp=[8]", "plan.search.pp=[4]"]
    scenario = scenario_from("llama3_70b", "dgx_h100", 8, 512, search)
    assert (scenario.derived.degree("tp"), scenario.derived.degree("pp")) == (8, 4)
    assert _taken(scenario)["method"] == "zero"
    # v100_16gb has no bf16
    assert _taken(scenario_from("gpt2", "zhores", 2, 64))["precision"] == "fp16"
