"""Parameters of imported models are those of the published checkpoints, to the last one."""

import json

import pytest

from scenarios.importing import Options, imported
from scenarios.scenario import Scenario
from simulator.errors import ScenarioError
from tests.scenarios.importing.configurations import MODELS, llama
from tests.scenarios.importing.expert_configurations import EXPERT_MODELS

ALL = {**MODELS, **EXPERT_MODELS}


@pytest.mark.parametrize("name", ALL)
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
    file.write_text(json.dumps({**EXPERT_MODELS["deepseek_v3"][0], "num_nextn_predict_layers": 1}))
    assert imported([str(file)], Options(nodes=1), "x").unread == {str(file): ["num_nextn_predict_layers"]}


def test_a_window_that_is_not_in_use_by_default_is_none(tmp_path):
    """Qwen's windows are off unless use_sliding_window says so (configuration_qwen2.py)."""
    file = tmp_path / "config.json"
    for family in ("qwen2", "qwen3"):
        file.write_text(json.dumps(llama(2, 256, 4, 4, 512, 8192, 1000, model_type=family, sliding_window=4096)))
        model = imported([str(file)], Options(nodes=1), "x").scenario.specification.model
        assert model.attention_window is None
