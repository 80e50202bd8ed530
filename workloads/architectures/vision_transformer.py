"""Vision transformers (ViT): an image is cut into patches, which are the tokens of an encoder.

Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1. A class token stands before the patches; its last state gives
the class. Norms stand before each block, and every position sees all others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import Transformer, transformer, transformer_operators
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, dropout
from clustersim.workloads.operators.embedding import EMBEDDING
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.loss import cross_entropy
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import parameter_tensors

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
