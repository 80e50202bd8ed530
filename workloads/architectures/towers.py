"""Two towers: an encoder of images and one of text, trained so that the vectors of a pair are close (CLIP, SigLIP).

Radford et al. 2021, "CLIP" (arXiv:2103.00020, section 2.3): a softmax over all pairs of a batch; a class token gives
the vector of an image. Zhai et al. 2023, "SigLIP" (arXiv:2303.15343, section 3.2): a sigmoid for each pair; the vector
of an image comes from attention of a learned query to all patches. Sizes are as transformers has them (modeling_clip.py
and modeling_siglip.py). Pairs are those of the micro-batch of a rank: the gather of vectors of other ranks, a batch x
features of them, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.workloads.architectures.image_models import PIXEL_BYTES
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import TOKEN_BYTES, embedding_operators, transformer_operators
from clustersim.workloads.operators.attentions.cross_attention import FlashCrossAttention
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, gelu, layer_norm
from clustersim.workloads.operators.embedding import EMBEDDING
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import ParameterTensor, matrix, parameter_tensors

CONTRAST = Operation("contrastive loss", "loss")


@dataclass(frozen=True)
class Towers:
    """The shapes of both, each with its own positions, and *features* of the vectors that are compared.

    *patch*: pixels of a patch of *image*. *sigmoid*: SigLIP, else CLIP.
    """

    of_image: Shape
    of_text: Shape
    image: Image
    patch: int
    features: int
    sigmoid: bool = False

    @property
    def precision(self) -> str:
        """That of the products."""
        return self.of_text.precision


@dataclass(frozen=True)
class Contrast(Operator):
    """The products of all vectors of images and of text of a micro-batch, and the loss over them."""

    features: int
    parameters: tuple[ParameterTensor, ...]
    precision: str = "fp32"

    @property
    def operation(self) -> Operation:
        """A loss."""
        return CONTRAST

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """The scale, and the bias of SigLIP."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """One product; the softmax, or sigmoids, read and write each score."""
        return self._product(samples), memory_bound(2 * self.kept_bytes(samples), precision=self.precision)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradient of each score, and of the vectors of images and of text."""
        product = matmul(samples, self.features, samples, precision=self.precision)
        return memory_bound(2 * self.kept_bytes(samples), precision=self.precision), product, product

    def kept_bytes(self, samples: int) -> float:
        """The scores."""
        return float(samples**2 * BYTES[self.precision])

    def _product(self, samples: int) -> Kernel:
        return matmul(samples, samples, self.features, precision=self.precision)


def two_towers(towers: Towers, name: str = "towers") -> Model:
    """The model: the tower of text, then that of images with the loss. A sample is an image and its text."""
    text, image = towers.of_text, towers.of_image
    vector = float(towers.features * BYTES[towers.precision])
    layers = [OperatorLayer("text embedding", "embedding", embedding_operators(text), text.hidden_bytes)]
    layers += _layers(text, "text layer", 0.0)
    layers.append(OperatorLayer("text head", "linear", _text_vector(towers), vector))
    layers.append(OperatorLayer("image embedding", "embedding", _patches(towers), image.hidden_bytes + vector))
    layers += _layers(image, "image layer", vector)
    # a scale; SigLIP has a bias too
    learned = parameter_tensors(1, 1) if towers.sigmoid else parameter_tensors(1)
    contrast = Contrast(towers.features, learned, towers.precision)
    layers.append(OperatorLayer("head", "head", (*_image_vector(towers), contrast), 4.0))
    sample = float(TOKEN_BYTES * text.seq_length + PIXEL_BYTES * towers.image.elements)
    return Model(name, layers, sample, precision=towers.precision, fused=text.software.fused)


def _layers(shape: Shape, name: str, beside: float) -> Iterator[OperatorLayer]:
    first = OperatorLayer(f"{name} 0", "transformer", transformer_operators(shape), shape.hidden_bytes + beside)
    return (first.again(f"{name} {number}") for number in range(shape.num_layers))


def _text_vector(towers: Towers) -> tuple[Operator, ...]:
    """The last norm, and the product of the state of the last token."""
    text = towers.of_text
    norm = layer_norm(text.seq_length, text.hidden_size, text.precision)
    return norm, Linear(1, text.hidden_size, towers.features, towers.sigmoid, text.precision)


def _patches(towers: Towers) -> tuple[Operator, ...]:
    """Patches and learned positions; CLIP has a class token before them, and a norm behind."""
    shape, clip = towers.of_image, not towers.sigmoid
    target = towers.image.through(shape.hidden_size, towers.patch, towers.patch, 0)
    cut = Convolution(towers.image, target, towers.patch, towers.patch, not clip, shape.precision, first=True)
    elements, width = shape.seq_length * shape.hidden_size, BYTES[shape.precision]
    tensors = (*parameter_tensors(shape.hidden_size)[: int(clip)], *parameter_tensors(elements))
    positions = Elementwise(
        elements, 3.0 * width, 1.0 * width, parameters=tensors, precision=shape.precision, operation=EMBEDDING
    )
    norm = (layer_norm(shape.seq_length, shape.hidden_size, shape.precision),) if clip else ()
    return cut, positions, *norm


def _image_vector(towers: Towers) -> tuple[Operator, ...]:
    """The product of the class token's state, or attention of a learned query, with a feed-forward network."""
    shape, precision = towers.of_image, towers.of_image.precision
    hidden, rows = shape.hidden_size, shape.seq_length
    if not towers.sigmoid:
        return layer_norm(1, hidden, precision), Linear(1, hidden, towers.features, False, precision)
    probe = Elementwise(0, 0.0, 0.0, parameters=(matrix(1, hidden, hidden=False),))
    query = Linear(1, hidden, hidden, True, precision)
    keys = Linear(rows, hidden, 2 * hidden, True, precision)
    core = FlashCrossAttention(1, shape.heads, shape.heads, shape.head_size, False, precision=precision, keys=rows)
    network = (
        replace(query, outputs=shape.mlp.ffn_hidden_size),
        gelu(shape.mlp.ffn_hidden_size, precision),
        replace(query, inputs=shape.mlp.ffn_hidden_size),
    )
    norm = layer_norm(1, hidden, precision)
    return layer_norm(rows, hidden, precision), probe, query, keys, core, query, norm, *network
