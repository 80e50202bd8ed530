"""Parameters of imported models are those of the published checkpoints, to the last one."""

import json

import pytest

from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.specification import model
from tests.samples import sample
from tests.scenarios.exchange.formats.configurations import MODELS, llama
from tests.scenarios.exchange.formats.expert_configurations import EXPERT_MODELS

ALL = {**MODELS, **EXPERT_MODELS}


@pytest.mark.parametrize("name", sample(ALL, 3, heavy=["deepseek_v3"]))
def test_parameters_are_those_of_the_checkpoint(name, tmp_path):
    configuration, parameters = ALL[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(configuration, indent=2))
    made = imported([str(file)], Options(nodes=1), name, ["training.precision=bf16"])
    assert made.scenario.model.parameters == parameters
    assert made.unread == {}
    # the text means the same scenario
    (tmp_path / "again.yaml").write_text(made.text)
    again = Scenario.load(tmp_path / "again.yaml")
    assert again.specification == made.scenario.specification
    assert again.model.parameters == parameters


def test_the_parameters_of_llama_have_a_closed_form():
    for name in ("llama3_8b", "llama2_70b", "deepseek_llm_67b"):
        c, parameters = MODELS[name]
        hidden, inner, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"]
        head = hidden // c["num_attention_heads"]
        layer = 2 * hidden * hidden + 2 * hidden * kv * head + 3 * hidden * inner + 2 * hidden
        assert 2 * c["vocab_size"] * hidden + c["num_hidden_layers"] * layer + hidden == parameters


def test_keys_that_are_not_read_are_listed(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(llama(2, 64, 4, 4, 128, 64, 100, mystery=3, sliding_window=16, off=None)))
    made = imported([str(file)], Options(nodes=1), "x")
    assert made.unread == {str(file): ["mystery", "sliding_window"]}
    assert f"# not read: {file}: mystery, sliding_window" in made.text


def test_an_unknown_family_is_told(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**llama(2, 64, 4, 4, 128, 64, 100), "model_type": "lama"}))
    with pytest.raises(ScenarioError, match=r'config.json:1:\d+: model_type: unknown family "lama"'):
        imported([str(file)], Options(), "x")


def test_the_module_for_further_tokens_is_listed(tmp_path):
    """The code of DeepSeek-V3 in transformers leaves it out, and so do its 671 billion parameters."""
    file = tmp_path / "config.json"
    # few layers: only the list is asked for
    few = {**EXPERT_MODELS["deepseek_v3"][0], "num_hidden_layers": 4}
    file.write_text(json.dumps({**few, "num_nextn_predict_layers": 1}))
    assert imported([str(file)], Options(nodes=1), "x").unread == {str(file): ["num_nextn_predict_layers"]}


def test_a_window_that_is_not_in_use_by_default_is_none(tmp_path):
    """Qwen's windows are off unless use_sliding_window says so (configuration_qwen2.py)."""
    file = tmp_path / "config.json"
    for family in ("qwen2", "qwen3"):
        file.write_text(json.dumps(llama(2, 256, 4, 4, 512, 8192, 1000, model_type=family, sliding_window=4096)))
        model = imported([str(file)], Options(nodes=1), "x").scenario.specification.model
        assert model.attention_window is None


LLAMA4 = {
    "model_type": "llama4_text",
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "hidden_size": 5120,
    "interleave_moe_layer_step": 2,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "use_qk_norm": False,
    "vocab_size": 202048,
}
GEMMA3 = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
MINIMAX = llama(62, 3072, 48, 8, 1536, 196608, 200064, model_type="minimax_m2", num_local_experts=256, head_dim=128)
QWEN3 = llama(36, 4096, 32, 8, 12288, 40960, 151936, model_type="qwen3_vl_text", head_dim=128)

PARTS = {
    "llama4": (LLAMA4, "llama4_maverick"),
    "gemma3": ({**GEMMA3, "sliding_window": 1024}, "gemma3_4b"),
    "kimi_k25": (EXPERT_MODELS["deepseek_v3"][0], "deepseek_v3"),
    "qwen3_vl": (QWEN3, "qwen3_8b"),
}
"""The text model of a model of several parts, and the one of the catalogue that it is."""


@pytest.mark.parametrize("name", sample(PARTS, heavy=["kimi_k25", "llama4"]))
def test_of_several_parts_the_text_model_is_read(name, tmp_path):
    text, preset = PARTS[name]
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"model_type": name, "text_config": text, "vision_config": {"model_type": "mystery"}}, indent=2)
    )
    made = imported([str(file)], Options(nodes=1), name, ["training.precision=bf16"])
    assert made.scenario.model.parameters == model(preset).parameters
    assert made.unread == {}
    assert "vision_config: only the text model is read, without this encoder" in made.text
    line = next(n for n, one in enumerate(file.read_text().splitlines(), 1) if '"hidden_size"' in one)
    assert f"config.json:{line} text_config.hidden_size" in made.text


def test_a_known_tower_of_images_is_read(tmp_path):
    """Qwen/Qwen3-VL-8B-Instruct has 8,767,123,696 parameters, 576,388,336 of them in the tower and its projectors."""
    vision = {"model_type": "qwen3_vl", "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen3_vl", "text_config": QWEN3, "vision_config": vision}))
    made = imported([str(file)], Options(nodes=1), "qwen3_vl", ["training.precision=bf16"])
    assert made.unread == {}
    assert made.scenario.model.parameters == model("qwen3_8b").parameters + 576_388_336 == 8_767_123_696


def test_an_error_in_the_text_model_has_its_line(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": {**GEMMA3, "hidden_size": "wide"}}, indent=2))
    with pytest.raises(ScenarioError, match=r"config.json:5:\d+: hidden_size: must be a whole number, not 'wide'"):
        imported([str(file)], Options(), "x")


def test_minimax_has_norms_over_all_heads(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**MINIMAX, "num_experts_per_tok": 8, "qk_norm_type": "per_layer"}))
    assert imported([str(file)], Options(nodes=1), "x").scenario.model.parameters == model("minimax_m2").parameters
    file.write_text(json.dumps({**MINIMAX, "qk_norm_type": "per_token"}))
    with pytest.raises(ScenarioError, match="qk_norm_type: must be per_layer or per_head"):
        imported([str(file)], Options(nodes=1), "x")
