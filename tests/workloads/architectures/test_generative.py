"""Diffusion transformers, U-Nets, two towers and speech models: FLOPs as published or as torch counts them."""

from typing import Any

import pytest

from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.validation import validated
from clustersim.workloads.architectures.image_model_keys import DiffusionSpecification, UNetSpecification
from clustersim.workloads.architectures.specification import model, specification
from clustersim.workloads.architectures.tower_keys import TowersSpecification

COUNTED = {"sd3": 8.437355053056, "flux": 74.384653418496, "sdxl": 6.76123639808, "siglip": 0.72347573376}
"""TFLOP of a forward pass of one sample that torch.utils.flop_counter (2.13.0) counts for diffusers 0.42.1 and
transformers 5.23.0: 154 vectors of text for sd3, 512 for flux, 77 for sdxl."""


@pytest.mark.parametrize("name", COUNTED)
def test_forward_flops_are_those_that_torch_counts(name: str) -> None:
    """Within 0.1 %: torch was given no contrastive loss. Backward is twice forward, but for the first input."""
    made = model(name, "bf16")
    forward = sum(kernel.flops for layer in made.layers for kernel in layer.forward(1))
    assert forward == pytest.approx(COUNTED[name] * 1e12, rel=1e-3)
    assert made.flops() == pytest.approx(3 * forward, rel=2e-3)


def test_whisper_has_the_flops_that_torch_counts() -> None:
    """3.448 TFLOP for 30 seconds and 448 tokens, where torch's fused attention counts a causal square whole too."""
    layers = model("whisper_large_v3", "bf16").layers
    assert sum(k.flops for one in layers for k in one.forward(1)) == pytest.approx(3.44847908864e12, rel=1e-3)


def test_dit_xl_has_the_published_flops() -> None:
    """Peebles and Xie 2023, table 4: 118.6 Gflops, multiplications, for DiT-XL/2 at 256 pixels; 675 million weights."""
    made = model("dit_xl", "bf16")
    assert sum(k.flops for one in made.layers for k in one.forward(1)) / 2 == pytest.approx(118.64e9, rel=1e-3)
    assert made.parameters == 675_129_632 - 256 * 1152  # its positions are fixed


def test_a_batch_of_pairs_has_a_square_of_scores() -> None:
    head = model("clip", "bf16").layers[-1]
    one, two = (sum(k.flops for k in head.forward(n)) for n in (1, 2))
    assert two - 2 * one == 2 * 768 * (4 - 2)


def test_images_that_wait_are_passed_on() -> None:
    """Behind the first convolution the U-Net holds that image for the last block, beside what it passes on."""
    layers = specification("sdxl").build("bf16").layers
    image = 320 * 128 * 128 * 2
    assert [layers[n].output_bytes(1) for n in (0, 1)] == [image, 2 * image]
    assert layers[-2].output_bytes(1) == image


def test_the_last_layer_has_no_text_behind_its_attention() -> None:
    """Stable Diffusion 3 drops the stream of text behind the attention of its last layer."""
    layers = model("sd3").layers
    h = 1536
    gone = 4 * (h * h + h) + (h * h + h) + 2 * (4 * h * h) + 5 * h
    assert layers[1].parameters - layers[24].parameters == gone


@pytest.mark.parametrize(
    "of, given, message",
    [
        (DiffusionSpecification, {"kind": "diffusion", "num_single_layers": 2}, "num_single_layers"),
        (DiffusionSpecification, {"kind": "diffusion", "text_length": 7}, "text_features"),
        (UNetSpecification, {"kind": "unet", "transformer_layers": [1]}, "transformer_layers"),
        (UNetSpecification, {"kind": "unet", "transformer_layers": [0, 1]}, "text_length"),
        (TowersSpecification, {"kind": "towers", "objective": "siglip", "projection_size": 3}, "projection_size"),
    ],
)
def test_faults_name_the_key(of: Any, given: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    base: dict[str, Any] = {
        DiffusionSpecification: {"image_size": 32, **sizes},
        UNetSpecification: {"image_size": 32, "block_out_channels": [64, 128]},
        TowersSpecification: {"image": sizes, "text": {**sizes, "vocab_size": 100}},
    }[of]
    with pytest.raises(SimulatorError, match=message):
        validated(Document({**base, **given}, {}), of)
