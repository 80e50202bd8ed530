"""A text model with a tower of images: how ranks share it, what images cost, and what does not fit."""

from typing import Any

import pytest

from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.validation import validated
from clustersim.workloads.architectures.towers import VISION, VisionLanguage
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification
from clustersim.workloads.operators.sharded import Cut

VISION_KEYS: dict[str, Any] = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "image_size": 224}
VISION_KEYS |= {"projector": {"widths": [512, 256], "merge": 2, "copies": 1}}
TEXT: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "seq_length": 1024,
    "vocab_size": 1000,
}
TEXT |= {"attention": "flash", "dropout": 0}


def made(text: dict[str, Any] | None = None, **vision: Any) -> VisionLanguage:
    keys = {**TEXT, **(text or {}), "vision": {**VISION_KEYS, **vision}}
    model = TransformerSpecification.model_validate(keys).build("bf16")
    assert isinstance(model, VisionLanguage)
    return model


def matrices(model: VisionLanguage) -> int:
    layers = (layer for layer in model.layers if layer.kind == VISION and layer.name.startswith("image layer"))
    return sum(tensor.count for layer in layers for tensor in layer.tensors if tensor.rows)


def flops(model: VisionLanguage) -> float:
    return sum(kernel.flops for layer in model.layers if layer.kind == VISION for kernel in layer.forward(1))


def test_forward_flops_are_those_of_products() -> None:
    """256 patches and 64 tokens: patches, products and scores of two layers, and two projectors."""
    layer = 2 * 256 * 12 * 128**2 + 4 * 256**2 * 128
    projector = 2 * 64 * (512 * 512 + 512 * 256)
    assert flops(made()) == pytest.approx(2 * 256 * 3 * 14**2 * 128 + 2 * layer + 2 * projector)


def test_images_attend_to_their_own_patches_only() -> None:
    assert flops(made(images=3)) == pytest.approx(3 * flops(made()))


def test_tensor_parallelism_cuts_the_tower_where_ranks_divide_its_heads() -> None:
    whole = made()
    assert matrices(whole.reshaped(cut=Cut("tp", 2))) * 2 == matrices(whole)
    assert matrices(made(num_attention_heads=1).reshaped(cut=Cut("tp", 2))) == matrices(whole)


@pytest.mark.parametrize(
    "text, vision, message",
    [
        ({}, {"projector": {"widths": [512]}}, "widths: end with 512, not with hidden_size = 256"),
        ({}, {"images": 17}, "images: have 1088 tokens, more than seq_length = 1024"),
        ({}, {"image_size": 20}, "image_size: 20 has no token of 28 x 28 pixels"),
        ({"lora": {}}, {}, "vision: is not modelled with lora"),
    ],
)
def test_faults(text: dict[str, Any], vision: dict[str, Any], message: str) -> None:
    keys = {**TEXT, **text, "vision": {**VISION_KEYS, **vision}}
    with pytest.raises(ScenarioError) as error:
        validated(Document(keys, {}), TransformerSpecification)
    assert message in str(error.value)
