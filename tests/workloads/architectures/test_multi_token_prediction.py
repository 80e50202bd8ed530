"""Multi-token prediction: parameters and FLOPs by formula, and its place in a pipeline."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import next_tokens, transformer
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.tensor import sharded

SHAPE = Shape(
    4,
    64,
    32,
    512,
    SelfAttention(4, 4, bias=False),
    Mlp(256, bias=False),
    norm=Norm("rmsnorm"),
    embedding=Embedding(tied=False, positions="rope"),
    dropout=False,
    precision="bf16",
)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_module_has_a_layer_a_product_and_three_norms(depth: int) -> None:
    plain, made = transformer(SHAPE), next_tokens(replace(SHAPE, num_nextn_predict_layers=depth))
    layer, h, s = plain.layers[1], 64, 32
    assert made.parameters - plain.parameters == depth * (layer.parameters + 2 * h * h + 3 * h)
    own = sum(kernel.flops for kernel in (*layer.forward(1), *layer.backward(1)))
    assert made.flops() - plain.flops() == depth * (own + 3 * 2 * s * (2 * h * h + h * 512))


def test_modules_are_on_the_stage_of_the_head_which_copies_the_embedding() -> None:
    made = next_tokens(replace(SHAPE, num_nextn_predict_layers=1))
    stages = stages_of(made, 2)
    assert [layer.name for layer in stages[-1]][-2:] == ["head", "mtp 0"]
    last = sum(tensor.count for tensor in made.tensors_of({layer.name for layer in stages[-1]}))
    assert last == sum(layer.parameters for layer in stages[-1]) + 64 * 512


def test_tensor_parallel_ranks_share_the_layer_of_a_module() -> None:
    made = next_tokens(replace(SHAPE, num_nextn_predict_layers=1))
    half = sharded(made, 2)
    assert [layer.name for layer in half.layers] == [layer.name for layer in made.layers]
    joined = 2 * 64 * 64 + 3 * 64
    assert half.layers[-1].parameters < joined + 0.55 * (made.layers[-1].parameters - joined)


def scenario(model: Mapping[str, object]) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100"},
            "model": {"preset": "llama3_2_1b", "seq_length": 1024, **model},
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": {"tp": 2, "sequence_parallel": True, "pp": 2, "data": {"method": "zero", "stage": 1}},
        }
    )


def test_megatrons_name_of_the_key_and_a_longer_step() -> None:
    plain, made = (scenario(keys).run().summary()["step_time_s"] for keys in ({}, {"mtp_num_layers": 1}))
    assert plain < made


def test_a_masked_model_predicts_no_next_tokens() -> None:
    with pytest.raises(ScenarioError, match=r"num_nextn_predict_layers: belongs to head: causal_lm, not to masked_lm"):
        scenario({"num_nextn_predict_layers": 1, "head": "masked_lm"})
