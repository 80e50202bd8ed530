"""Vision transformers (ViT): an image is cut into patches, which are the tokens of an encoder.

Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1. A class token stands before the patches; its last state gives
the class. Norms stand before each block, and every position sees all others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from simulator.document import Count
from simulator.document.quantities import number
from simulator.kernel import BYTES
from workloads.architectures.keys import KNOWN, MOST_FEATURES, MOST_LAYERS, Named, divides, most
from workloads.model import Model
from workloads.operators.convolution import Convolution, Image
from workloads.operators.elementwise import Elementwise, dropout
from workloads.operators.embedding import EMBEDDING
from workloads.operators.fusion import Fused
from workloads.operators.layer import OperatorLayer
from workloads.operators.linear import Linear
from workloads.operators.loss import cross_entropy
from workloads.operators.operator import Operator
from workloads.operators.parameter import parameter_tensors
from workloads.shape import Shape
from workloads.transformer import Transformer, transformer, transformer_operators

PIXEL_BYTES = 4
"""An image reaches the GPU in fp32, whatever the precision of the products."""


@dataclass(frozen=True, kw_only=True)
class VisionTransformer(Transformer):
    """A vision transformer of *image*, cut into patches of *patch_size* pixels."""

    image: Image
    patch_size: int

    def reshaped(self, **changes: Any) -> VisionTransformer:
        """The model with *changes* to fields of its shape."""
        return vision_transformer(replace(self.shape, **changes), self.image, self.patch_size, self.name)


def vision_transformer(shape: Shape, image: Image, patch_size: int, name: str = "vision") -> VisionTransformer:
    """The model of *shape*; its sequence is the class token and the patches, its vocabulary the classes.

    >>> base = Shape(12, 768, 12, 12, 3072, 197, 1000, tie_embeddings=False, attention_mask="full")
    >>> vision_transformer(base, Image(3, 224, 224), 16).parameters
    86567656
    """
    model = transformer(shape, name)
    layers = list(model.layers)
    layers[0] = OperatorLayer("embedding", "embedding", _patches(shape, image, patch_size), shape.hidden_bytes)
    layers[-1] = OperatorLayer("head", "head", _classes(shape), 4.0)
    values = {one.name: getattr(model, one.name) for one in fields(model)}
    # a sample is an image: its patches are no tokens of a text
    values |= {"layers": layers, "sample_bytes": float(PIXEL_BYTES * image.elements), "tokens_per_sample": 0}
    return VisionTransformer(**values, image=image, patch_size=patch_size)


def _patches(shape: Shape, image: Image, patch_size: int) -> tuple[Operator, ...]:
    """A convolution whose windows are the patches; the class token before them, and learned positions."""
    hidden, precision = shape.hidden_size, shape.precision
    target = image.through(hidden, patch_size, patch_size, 0)
    cut = Convolution(image, target, patch_size, patch_size, True, precision, first=True)
    elements, width = shape.seq_length * hidden, BYTES[precision]
    tensors = parameter_tensors(hidden, elements)
    positions = Elementwise(
        elements, 3.0 * width, 1.0 * width, parameters=tensors, precision=precision, operation=EMBEDDING
    )
    return cut, positions, *((dropout(elements, precision),) if shape.dropout else ())


def _classes(shape: Shape) -> tuple[Operator, ...]:
    """A norm, the product of the class token's state that gives the classes, and the loss."""
    norm = transformer_operators(shape)[0]
    logits = Linear(1, shape.hidden_size, shape.vocab_size, precision=shape.precision)
    return norm, logits, cross_entropy(1, shape.vocab_size, shape.precision, shape.loss)


class VisionSpecification(Named):
    """A vision transformer; keys as in Hugging Face's ViTConfig."""

    kind: Annotated[Literal["vision"], KNOWN]
    """vision: a vision transformer. Required."""
    num_layers: Count
    """Layers. Also num_hidden_layers. Required."""
    hidden_size: Count
    """Features of the hidden state. Required."""
    num_attention_heads: Count
    """Attention heads; they must divide hidden_size. Required."""
    ffn_hidden_size: Count | None = None
    """Features inside the MLP; by default 4 times hidden_size. Also intermediate_size."""
    image_size: Count = 224
    """Height and width of an image, pixels."""
    patch_size: Count = 16
    """Height and width of a patch, pixels; it must divide image_size."""
    num_channels: Count = 3
    """Channels of an image."""
    num_classes: Count = 1000
    """Classes that the head tells apart."""
    attention: Literal["unfused", "flash"] = "unfused"
    """unfused stores the scores, flash does not."""
    dropout: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 0.0
    """Probability of dropout, 0 to 1; above 0 its kernels and masks count."""

    @model_validator(mode="after")
    def _sound(self) -> VisionSpecification:
        most("num_layers", self.num_layers, MOST_LAYERS)
        most("hidden_size", self.hidden_size, MOST_FEATURES)
        divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        divides("patch_size", self.patch_size, "image_size", self.image_size)
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        shape = Shape(
            self.num_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.num_attention_heads,
            self.ffn_hidden_size or 4 * self.hidden_size,
            (self.image_size // self.patch_size) ** 2 + 1,
            self.num_classes,
            tie_embeddings=False,
            attention=self.attention,
            attention_mask="full",
            dropout=bool(self.dropout),
            precision=precision,
            fused=fused,
        )
        image = Image(self.num_channels, self.image_size, self.image_size)
        return vision_transformer(shape, image, self.patch_size, self.title)
