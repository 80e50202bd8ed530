"""Keys of Hugging Face's configurations in the model section."""

from pathlib import Path

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.model_keys import ALIASES
from clustersim.workloads.architectures.specification import specification
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification

OURS = """\
version: 1
cluster: {preset: uniform, gpus: 4, bandwidth: 1 GB/s, latency: 1 us, accelerator: a100_80gb}
model:
  num_layers: 4
  hidden_size: 512
  num_attention_heads: 8
  ffn_hidden_size: 1024
  activation: swiglu
  seq_length: 128
  vocab_size: 1000
  tie_embeddings: false
training: {global_batch_size: 8}
"""

THEIRS = (
    OURS.replace("num_layers", "num_hidden_layers")
    .replace("ffn_hidden_size", "intermediate_size")
    .replace("activation: swiglu", "hidden_act: silu")
    .replace("seq_length", "max_position_embeddings")
    .replace("tie_embeddings", "tie_word_embeddings")
)


def parameters(text: str, folder: Path, options: list[str] | None = None) -> int:
    (folder / "one.yaml").write_text(text)
    model = Scenario.load(folder / "one.yaml", options=options).model
    assert model is not None
    return model.parameters


def test_a_model_of_hugging_face_is_that_of_the_same_sizes(tmp_path: Path) -> None:
    assert parameters(THEIRS, tmp_path) == parameters(OURS, tmp_path)


def test_an_option_overrides_a_key_of_the_file_by_either_name(tmp_path: Path) -> None:
    twelve = parameters(OURS.replace("num_layers: 4", "num_layers: 12"), tmp_path)
    for text in (OURS, THEIRS):
        for key in ("num_layers", "num_hidden_layers", "n_layer"):
            assert parameters(text, tmp_path, [f"model.{key}=12"]) == twelve


def test_a_variant_and_a_preset_are_overridden(tmp_path: Path) -> None:
    preset = "model: {preset: gpt2, num_hidden_layers: 4}\n"
    text = OURS[: OURS.index("model:")] + preset + OURS[OURS.index("training") :]
    (tmp_path / "one.yaml").write_text(
        text + "variants: {deep: {model.n_layer: 8}, flat: {model: {n_layer: 2, preset: gpt2}}}\n"
    )
    loaded = Scenario.load(tmp_path / "one.yaml")
    layers = [one.specification.model.num_layers for one in (loaded, *loaded.variants.values())]  # type: ignore[union-attr]
    assert layers == [4, 8, 2]


def test_the_length_of_a_sample_holds_beside_the_longest_that_the_model_takes(tmp_path: Path) -> None:
    both = OURS.replace("seq_length: 128", "seq_length: 128\n  max_position_embeddings: 131072")
    assert parameters(both, tmp_path) == parameters(OURS, tmp_path)


def test_both_names_of_a_key_are_refused_at_the_second(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"one.yaml:5:3: model.num_hidden_layers: stands for num_layers, which"):
        parameters(OURS.replace("num_layers: 4", "num_layers: 4\n  num_hidden_layers: 4"), tmp_path)
    with pytest.raises(ScenarioError, match=r"one.yaml:4:3: model.n_layer: stands for num_layers, which"):
        parameters(OURS.replace("num_layers: 4", "n_layer: 4\n  num_layers: 4"), tmp_path)


def test_a_fault_is_at_the_place_of_the_alias(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"one.yaml:4:22: model.num_layers: must be at least 1, not 0"):
        parameters(THEIRS.replace("layers: 4", "layers: 0"), tmp_path)


def test_a_file_of_a_model_may_have_them(tmp_path: Path) -> None:
    body = THEIRS[THEIRS.index("model:\n") + len("model:\n") : THEIRS.index("training")]
    file = tmp_path / "mine.yaml"
    file.write_text(body.replace("  ", ""))
    found = specification(str(file))
    assert isinstance(found, TransformerSpecification)
    assert (found.num_layers, found.activation) == (4, "swiglu")
    at = OURS.index("model:"), OURS.index("training")
    text = f"{OURS[: at[0]]}model: {{preset: mine.yaml, num_layers: 6}}\n{OURS[at[1] :]}"
    six = OURS.replace("num_layers: 4", "num_layers: 6")
    assert parameters(text, tmp_path) == parameters(six, tmp_path)


def test_every_alias_stands_for_a_key_and_is_none_itself() -> None:
    keys = TransformerSpecification.model_fields.keys()
    assert set(ALIASES.values()) <= keys
    assert not ALIASES.keys() & keys
