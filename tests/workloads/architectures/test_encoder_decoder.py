"""T5: published parameter counts, FLOPs by formula, what a pipeline sends and holds around the split rank."""

from dataclasses import replace
from math import prod

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective, Send
from clustersim.workloads.architectures.encoder_decoder import encoder_decoder
from clustersim.workloads.architectures.shape import Decoder, Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.tensor import sharded

COUNTS = {  # totals of the weights on Hugging Face, of the repositories that the files name
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344,
    "flan_t5_small": 76_961_152,
    "flan_t5_base": 247_577_856,
    "flan_t5_large": 783_150_080,
    "flan_t5_xl": 2_849_757_184,
    "flan_t5_xxl": 11_135_332_352,
}

SMALL = Shape(4, 64, 32, 512, SelfAttention(4, 4), Mlp(256), decoder=Decoder(8, 16), precision="bf16", dropout=False)


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_parameter_counts(name: str, count: int) -> None:
    assert model(name).parameters == count


@pytest.mark.parametrize("attention", ["unfused", "flash"])
def test_flops_by_formula(attention: str) -> None:
    # forward: 2 for each weight and token, and 4 h for each pair of positions; a backward pass costs twice that
    made = encoder_decoder(replace(SMALL, attention=replace(SMALL.attention, kind=attention)))
    h, s, t, encoders, decoders, vocabulary = 64, 32, 16, 4, 8, 512
    encoder = encoders * (2 * s * 12 * h * h + 4 * s * s * h)
    decoder = decoders * (2 * t * 14 * h * h + 2 * s * 2 * h * h + 4 * (t * t + t * s) * h)
    assert made.flops() == 3 * (encoder + decoder + 2 * t * h * vocabulary)


def test_cross_attention_computes_what_its_shapes_say() -> None:
    (layer,) = [one for one in encoder_decoder(SMALL).layers if one.name == "decoder layer 3"]
    for kernels in (layer.forward(3), layer.backward(3)):
        for kernel in kernels:
            assert kernel.shape is None or kernel.flops == 2 * prod(kernel.shape)


def test_biases_of_attention_are_those_of_cross_attention_too() -> None:
    """A decoder layer has two attentions, each with biases of queries, keys, values and output: 4 h."""
    keys = {"kind": "transformer", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32}
    more = {"vocab_size": 512, "num_decoder_layers": 3, "add_bias_linear": False}
    plain, biased = (
        TransformerSpecification.model_validate({**keys, **more, "attention_bias": bias}).build().parameters
        for bias in (False, True)
    )
    assert biased - plain == (2 + 2 * 3) * 4 * 64


def test_a_decoder_layer_hands_the_encoders_output_on() -> None:
    layers = {layer.name: layer for layer in encoder_decoder(SMALL).layers}
    encoder, decoder = 32 * 64 * 2, 16 * 64 * 2
    assert layers["encoder layer 3"].output_bytes(1) == encoder
    assert layers["decoder layer 0"].output_bytes(1) == encoder + decoder
    assert layers["decoder layer 0"].input_bytes_of_next(1) == decoder


def test_the_encoders_output_is_kept_once() -> None:
    layers = {layer.name: layer for layer in encoder_decoder(SMALL).layers}
    assert layers["decoder layer 0"].activation_bytes(5) - layers["decoder layer 1"].activation_bytes(5) == (
        5 * 32 * 64 * 2
    )


def test_tensor_parallel_ranks_share_every_product() -> None:
    whole = encoder_decoder(SMALL)
    halves = sharded(whole, 2)
    assert halves.flops() == whole.flops() / 2
    weights = [tensor.count for layer in whole.layers for tensor in layer.tensors if tensor.count > 256]
    shares = [tensor.count for layer in halves.layers for tensor in layer.tensors if tensor.count > 256]
    assert sum(shares) == sum(weights) / 2 + 64 * 32 / 2  # positions are not shared


def stage_sizes(stages: int, layout: str | None = None, split: int | None = None) -> list[list[str]]:
    made = stages_of(encoder_decoder(SMALL), stages, layout, split)
    return [sorted({layer.kind for layer in stage}) for stage in made]


def test_encoder_and_decoder_share_no_stage() -> None:
    assert stage_sizes(3) == [["embedding", "encoder"], ["decoder"], ["decoder", "head"]]
    assert stage_sizes(4, split=2)[:2] == [["embedding", "encoder"], ["encoder"]]
    assert [len(stage) for stage in stages_of(encoder_decoder(SMALL), 4, "balanced", 1)] == [5, 3, 3, 3]


@pytest.mark.parametrize(
    ("stages", "layout", "split", "message"),
    [
        (4, None, 4, "split_rank = 4 leaves the encoder or the decoder"),
        (4, None, 1, "split_rank = 1 does not divide the 4 encoder and 8 decoder layers"),
        (2, "embedding_as_layer", None, "embedding_as_layer belongs to one stack of layers"),
    ],
)
def test_splits_that_do_not_fit(stages: int, layout: str | None, split: int | None, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        stages_of(encoder_decoder(SMALL), stages, layout, split)


def test_one_stack_has_no_split() -> None:
    with pytest.raises(ScenarioError, match="split_rank belongs to an encoder and a decoder"):
        stages_of(model("gpt2"), 4, None, 2)


SCENARIO = {
    "version": 1,
    "cluster": {"preset": "dgx_a100_80gb"},
    "model": {"preset": "t5_base"},
    "training": {"global_batch_size": 8, "micro_batch_size": 2, "precision": "bf16"},
    "parallelism": {"tp": 2, "pp": 4, "split_rank": 2, "scatter_gather": False},
}


def test_a_pipeline_sends_both_states_and_sums_three_copies_of_the_table() -> None:
    scenario = Scenario.model_validate(SCENARIO)
    encoder, both = 2 * 512 * 768 * 2, 2 * (512 + 114) * 768 * 2
    sent = {
        op.action.stage: op.nbytes
        for program in scenario.schedule().programs
        for op in program.distinct()
        if isinstance(op, Send) and op.action and op.action.phase == "F"
    }
    assert sent == {0: encoder, 1: encoder, 2: both}
    sums = [
        [op.nbytes for op in program.distinct() if isinstance(op, Collective) and op.over == "embedding"]
        for program in scenario.schedule().programs
    ]
    table = 32128 * 768 / 2 * 4  # gradients of 32 bits
    assert sums == [[table], [], [table], [table]]
