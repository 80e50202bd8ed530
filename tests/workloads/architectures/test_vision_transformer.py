"""Vision transformers: published parameter counts, FLOPs by formula, bad input."""

from pathlib import Path

import pytest

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.validation import validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.architectures.image_model_keys import VisionSpecification
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.parallelism.tensor import sharded

COUNTS = {
    "vit_ti_16": 5_717_416,  # timm, vit_tiny_patch16_224 and vit_small_patch16_224
    "vit_s_16": 22_050_664,
    # torchvision, the docstrings of torchvision/models/vision_transformer.py; ViT-H/14 there has 518 pixels
    "vit_b_16": 86_567_656,
    "vit_b_32": 88_224_232,
    "vit_l_16": 304_326_632,
    "vit_l_32": 306_535_400,
    "vit_h_14": 632_045_800,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_parameter_counts(name: str, count: int) -> None:
    assert model(name).parameters == count


def test_flops_by_formula() -> None:
    # 196 patches and a class token; the images need no gradient
    h, s, layers = 768, 197, 12
    patches = 2 * 196 * 3 * 16 * 16 * h
    forward = layers * (2 * s * 12 * h * h + 4 * s * s * h) + 2 * h * 1000
    assert model("vit_b_16").flops() == 3 * forward + 2 * patches


def test_published_forward_flops() -> None:
    # torchvision tells 17.564 G multiplications with additions for ViT-B/16 (ViT_B_16_Weights, _ops)
    forward = sum(kernel.flops for layer in model("vit_b_16").layers for kernel in layer.forward(1))
    assert forward / 2 / 1e9 == pytest.approx(17.564, rel=1e-3)


def test_class_tokens_of_a_vision_transformer() -> None:
    """Each further one has a vector of its own and a position; without any, the positions are those of the patches."""
    keys = {"kind": "vision", "num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
    none, one, eight = (
        VisionSpecification.model_validate({**keys, "class_token_length": count}).build() for count in (0, 1, 8)
    )
    assert one.parameters == COUNTS["vit_b_16"]
    assert (one.parameters - none.parameters, eight.parameters - one.parameters) == (2 * 768, 7 * 2 * 768)


def test_samples_are_images() -> None:
    made = model("vit_l_16")
    assert (made.tokens_per_sample, made.sample_bytes) == (0, 4 * 3 * 224 * 224)


def test_tensor_parallel_ranks_share_the_layers() -> None:
    whole = model("vit_b_16")
    half = sharded(whole, 2)
    assert isinstance(half, Transformer)
    assert half.layers[1].parameters < 0.51 * whole.layers[1].parameters
    assert half.layers[0].parameters == whole.layers[0].parameters


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("patch_size: 15", "patch_size: 15 does not divide image_size = 224; try 14 or 16"),
        ("num_attention_heads: 5", "num_attention_heads: 5 does not divide hidden_size = 64; try 4 or 8"),
        ("vocab_size: 5", "vocab_size: unknown key"),
        ("attention: sparse", 'attention: must be unfused or flash, not "sparse"'),
    ],
)
def test_faults(tmp_path: Path, keys: str, message: str) -> None:
    given = {"kind": "vision", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    key, _, value = keys.partition(": ")
    path = tmp_path / "x.yaml"
    path.write_text("".join(f"{k}: {v}\n" for k, v in {**given, key: value}.items()))
    with pytest.raises(ScenarioError) as error:
        validated(read(path), VisionSpecification)
    assert message in str(error.value)
