"""The `model:` section: its four kinds, its catalogue, and each way to get it wrong, with the exact words."""

from pathlib import Path

import pytest

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import UnknownName, names
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.architectures.specification import ModelSpecification, model, specification
from clustersim.workloads.operators.model import Model
from clustersim.workloads.software_stack import aliases, software


class Holder(Section):
    model: ModelSpecification


def build(folder: Path, text: str, precision: str = "fp32") -> Model:
    path = folder / "x.yaml"
    path.write_text(f"model: {text}\n")
    return validated(read(path), Holder).model.build(precision, True, folder)


SIZES = "num_layers: 2, hidden_size: 96, num_attention_heads: 12, seq_length: 8, vocab_size: 10"


def test_every_model_of_the_catalogue_loads_and_names_its_source() -> None:
    for name in names("clustersim.workloads.models"):
        made = specification(name)
        assert made.source
        assert made.description
        assert made.name.replace("-", "_") == name


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.exhaustive), "bf16"])
def test_every_model_of_the_catalogue_has_work_in_every_layer(precision: str) -> None:
    for name in names("clustersim.workloads.models"):
        made = model(name, precision)
        assert made.precision == precision
        assert all(layer.forward(1) and layer.backward(1) for layer in made.layers)
        assert len({layer.name for layer in made.layers}) == len(made.layers)
        assert all(layer.output_bytes(2) > 0 for layer in made.layers)
        # an embedding without dropout keeps nothing
        assert all(layer.activation_bytes(2) > 0 for layer in made.layers if layer.kind != "embedding")
        assert all(kernel.precision in BYTES for layer in made.layers for kernel in layer.forward(1))


def test_transformer_defaults_are_gpt2s(tmp_path: Path) -> None:
    by_hand = f"{{{SIZES}, num_key_value_heads: 12, ffn_hidden_size: 384, tie_embeddings: true, activation: gelu}}"
    assert build(tmp_path, f"{{{SIZES}}}").layers == build(tmp_path, by_hand).layers


def test_a_profile_is_read_relative_to_its_scenario(tmp_path: Path) -> None:
    header = "model,node,op,forward_ms,backward_ms,activation_bytes,parameter_bytes,preds\n"
    (tmp_path / "layers.csv").write_text(header + "net,a,Conv,1,2,3,4,\n")
    made = build(tmp_path, "{profile: layers.csv, model: net, batch_size: 1}")
    assert (made.name, made.parameters) == ("net", 1)


def test_unit_quantities(tmp_path: Path) -> None:
    made = build(
        tmp_path, "{kind: unit, num_layers: 4, forward: 1 ms, backward: 2 s, parameters: 1e9, activations: 1 MiB}"
    )
    assert made.parameters == 10**9
    assert made.layers[0].output_bytes(3) == 2**20
    assert made.layers[0].forward(3)[0].seconds == 1e-3


FAULTS = {
    "{}": "1:8: model: needs a preset, a profile, a kind (transformer, vision, convolutional, diffusion, unet, "
    "towers, speech, profile, unit) or the sizes of a transformer",
    "{kind: rnn}": "1:15: model.kind: must be transformer, vision, convolutional, diffusion, unet, towers, speech, "
    'profile or unit, not "rnn"',
    f"{{{SIZES.replace('12', '10')}}}": "1:62: model.num_attention_heads: 10 does not divide hidden_size = 96; "
    "try 8 or 12",
    f"{{{SIZES.replace('96', '0')}}}": "1:37: model.hidden_size: must be at least 1, not 0",
    f"{{{SIZES}, num_key_value_heads: 5}}": "1:118: model.num_key_value_heads: 5 does not divide num_attention_heads "
    "= 12; try 4 or 6",
    f"{{{SIZES}, dropout: 2}}": "1:106: model.dropout: must be at most 1, not 2",
    f"{{{SIZES.replace('2,', '20000,', 1)}}}": "1:21: model.num_layers: 20000 is absurd; the most that is "
    "taken is 10000",
    f"{{{SIZES}, forward: 1 s}}": "1:97: model.forward: belongs to kind unit, but kind is transformer",
    f"{{{SIZES}, activation: mish}}": "1:109: model.activation: must be gelu, gelu_new, relu, squared_relu, xielu, "
    'swiglu or geglu, not "mish"',
    f"{{{SIZES}, block: parallel, norm_placement: both}}": "1:130: model.norm_placement: belongs to serial causal "
    "models, not to block: parallel",
    "{kind: convolutional, layers: [{conv: 8}], num_layers: 3}": "1:51: model.num_layers: belongs to kind transformer, "
    "vision, diffusion, speech or unit, but kind is convolutional",
    "{kind: convolutional, layers: [{max_pool: 2}]}": "1:39: model.layers.0: a pooling joins the layer before it, so "
    "it cannot be the first",
    "{kind: convolutional, layers: [{conv: 3, kernel: 4}]}": "1:49: model.layers.0.kernel: unknown key",
    "{kind: convolutional, layers: [{conv: 3, kernel_size: 900, padding: 0}]}": "1:38: model.layers: a window of 900 "
    "with padding 0 does not fit an image of 224 x 224",
    "{kind: convolutional, layers: [{conv: 3, repeat: 1000000}]}": "1:38: model.layers: 1000000 is absurd; the most "
    "that is taken is 10000",
    "{profile: x.csv, forward: 1 s}": "1:25: model.forward: belongs to kind unit, but kind is profile",
    "{kind: unit, num_layers: 4, forward: 1, backward: 2 s}": '1:45: model.forward: needs a unit, e.g. "3 us" '
    'or "1.5 ms"',
    "{kind: unit, num_layers: 4, forward: 1 s, backward: -2 s}": "1:60: model.backward: must be at least 0, not -2 s",
    "{kind: unit, num_layers: 1, forward: 1 s, backward: 2 s, parameters: 1.5}": "1:77: model.parameters: must be a "
    "whole number, not 1.5",
    "{kind: unit, num_layers: 1, forward: 1 s, backward: 2 s, hidden_size: 8}": "1:65: model.hidden_size: belongs to "
    "kind transformer, vision, diffusion or speech, but kind is unit",
}


@pytest.mark.parametrize(("text", "message"), FAULTS.items(), ids=range(len(FAULTS)))
def test_faults(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        build(tmp_path, text)
    assert str(error.value).splitlines()[0].rpartition("x.yaml:")[2] == message


def test_an_unknown_model_is_answered_with_the_nearest_first() -> None:
    with pytest.raises(UnknownName) as error:
        model("gpt3")
    assert error.value.names[0] in ("gpt3_175b", "gpt2")
    assert set(error.value.names) == set(names("clustersim.workloads.models"))


def test_software_stacks() -> None:
    asynchronous = {"megatron", "megatron_2023", "megatron_core", "nanotron", "hai_llm", "megatron_core_2025"}
    asynchronous |= {"megascale", "megascale_overlap", "megascale_pp_overlap", "tensorflow", "xla", "xla_gpu"}
    fused = {*asynchronous, "megatron_2021", "megatron_deepspeed", "megatron_deepspeed_2021"}
    fused |= {"ddp_compile", "fsdp_compile", "alpa", "nanotron", "aa_scaling", "aa_scaling_flash1", "aa_scaling_flash2"}
    fused |= {"ddp_compile_2026", "fsdp_compile_2026", "nemo_automodel"}
    fused |= {"gaudi", "internlm", "megatron_early_2021", "torchtune", "deepspeed", "megatron_core_2025", "llm_c"}
    stacks = {name: software(name) for name in (*names("clustersim.workloads.software"), *aliases())}
    unfused = {
        "ddp",
        "ddp_sdpa",
        "ddp_sdpa_2026",
        "fsdp",
        "fsdp_2023",
        "fsdp_sdpa",
        "fsdp_sdpa_2026",
        "llm_foundry",
        "llm_foundry_2023",
        "aa_scaling_torch",
        "apex_o2",
        "huggingface",
        "huggingface_2025",
        "huggingface_deepspeed",
        "llama_factory",
    }
    assert set(stacks) == {"ideal", *unfused, *fused}
    assert stacks["ideal"].launch_seconds == 0.0
    assert {name for name, stack in stacks.items() if stack.fused} == {
        "ideal",
        "apex_o2",
        "ddp_sdpa",
        "ddp_sdpa_2026",
        "huggingface",
        "huggingface_2025",
        "huggingface_deepspeed",
        "llama_factory",
        *fused,
    }
    assert {name for name, stack in stacks.items() if stack.slice_seconds} == {"megatron_deepspeed_2021"}
    assert {name for name, stack in stacks.items() if stack.async_tensor} == {"ideal", *asynchronous}
    assert all(
        1e-6 <= stack.launch_seconds <= 1e-4
        for name, stack in stacks.items()
        if name not in ("ideal", "xla", "xla_gpu")
    )
