"""Models with a tower of image layers: two towers, whose vectors of a pair are trained to be close (CLIP, SigLIP), and
a causal transformer that sees images.

Radford et al. 2021, "CLIP" (arXiv:2103.00020, section 2.3): a softmax over all pairs of a batch; a class token gives
the vector of an image. Zhai et al. 2023, "SigLIP" (arXiv:2303.15343, section 3.2): a sigmoid for each pair; the vector
of an image comes from attention of a learned query to all patches. Sizes are as transformers has them (modeling_clip.py
and modeling_siglip.py). Pairs are those of the micro-batch of a rank: the gather of vectors of other ranks, a batch x
features of them, is left out.

The tower cuts images into patches, as ViT (Dosovitskiy et al. 2021, arXiv:2010.11929). Squares of its patches become
one token each, by concatenation of their features (Qwen3-VL, Kimi K2.5, Llama 4's pixel shuffle) or by pooling
(Gemma 3); products bring them to the features of the text model, where they replace embeddings of the text. Further
projectors add states of middle layers of the tower to those of the first text layers (Qwen3-VL's DeepStack, Meng et
al. 2024, arXiv:2406.04334). Sizes are as transformers has them (src/transformers/models/qwen3_vl and others).

The tower stands between the embedding and the first layer, so that a pipeline splits it as other layers. It is cut by
tensor parallelism where ranks divide its heads, else every rank has it whole; ranks of context parallelism compute it
whole. Tokens of images count in the length of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.architectures.image_models import PIXEL_BYTES
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import (
    TOKEN_BYTES,
    Transformer,
    embedding_operators,
    transformer,
    transformer_operators,
)
from clustersim.workloads.operators.attentions.cross_attention import FlashCrossAttention
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, gelu, layer_norm, rms_norm
from clustersim.workloads.operators.embedding_and_loss import EMBEDDING
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator, ParameterTensor, matrix, parameter_tensors
from clustersim.workloads.operators.sharded import WHOLE, Cut

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


VISION = "vision"
"""Kind of the layers."""

MERGE = Operation("image tokens", "elementwise")


@dataclass(frozen=True)
class Projector:
    """Products to features of *widths*, with GeLU between them; *copies* further ones take states of middle layers.

    *merge* x *merge* patches become a token. *pooled*: by their mean, else by concatenation. *norm*: one stands first,
    without a bias (RMS norm) unless *norm_bias*.
    """

    widths: tuple[int, ...]
    merge: int = 1
    pooled: bool = False
    norm: bool = True
    norm_bias: bool = True
    bias: bool = True
    copies: int = 0


@dataclass(frozen=True)
class VisionTower:
    """The tower of *images* a sample, each of the size of *image*, cut into patches of *patch* pixels.

    *of_images*: the shape of its layers; the sequence is the patches of all images, each with a class token if
    *class_token*. *position_rows*: of the learned table, 0: there is none. *first_norm*, *last_norm*: ahead of the
    layers and behind them.
    """

    of_images: Shape
    image: Image
    patch: int
    projector: Projector
    images: int = 1
    patch_bias: bool = True
    position_rows: int = 0
    class_token: bool = False
    first_norm: bool = False
    last_norm: bool = False

    @property
    def patches(self) -> int:
        """Of all images of a sample."""
        return self.images * (self.image.height // self.patch) * (self.image.width // self.patch)

    @property
    def tokens(self) -> int:
        """That the text model gets of a sample."""
        side = self.projector.merge
        return self.images * (self.image.height // self.patch // side) * (self.image.width // self.patch // side)


@dataclass(frozen=True, kw_only=True)
class VisionLanguage(Transformer):
    """A model with its *tower*; *shape* is that of the text model."""

    tower: VisionTower

    def reshaped(self, **changes: Any) -> VisionLanguage:
        """The model with *changes* to fields of its shape."""
        return vision_language(replace(self.shape, **changes), self.tower, self.name, self.notes)


def vision_language(
    shape: Shape, tower: VisionTower, name: str = "vision-language", notes: tuple[str, ...] = ()
) -> VisionLanguage:
    """The model of *shape*, with *tower* behind its embedding."""
    text = transformer(shape, name, notes)
    cut = _cut(shape, tower.of_images)
    own = replace(tower.of_images, precision=shape.precision, software=shape.software, cut=cut)
    made = replace(tower, of_images=own)
    passed = shape.hidden_bytes + own.hidden_bytes
    layers = [text.layers[0], OperatorLayer("image embedding", VISION, _embedded(made), passed)]
    first = OperatorLayer("image layer 0", VISION, transformer_operators(own), passed)
    layers += [first.again(f"image layer {number}") for number in range(own.num_layers)]
    layers.append(OperatorLayer("projector", VISION, tuple(_projected(made, shape)), shape.hidden_bytes))
    values = {one.name: getattr(text, one.name) for one in fields(text)}
    pixels = float(PIXEL_BYTES * made.images * made.image.elements)
    values |= {"layers": [*layers, *text.layers[1:]], "sample_bytes": text.sample_bytes + pixels}
    return VisionLanguage(**values, tower=tower)


def _cut(shape: Shape, own: Shape) -> Cut:
    """That of tensor parallelism, if its ranks divide heads and features of the tower."""
    ranks = shape.cut.ranks
    divides = own.attention.num_heads % ranks == 0 and own.mlp.ffn_hidden_size % ranks == 0
    return Cut(shape.cut.over, ranks) if divides and shape.cut.grid is None and ranks > 1 else WHOLE


def _norm(shape: Shape, rows: int, features: int) -> Operator:
    if shape.norm.kind == "rmsnorm":
        return rms_norm(rows, features, shape.precision, fused=shape.fuses("rms_norm"))
    return layer_norm(rows, features, shape.precision)


def _embedded(tower: VisionTower) -> tuple[Operator, ...]:
    """A convolution whose windows are the patches, learned positions, a class token and a norm where there are any."""
    own = tower.of_images
    side_by_side = replace(tower.image, width=tower.image.width * tower.images)
    target = side_by_side.through(own.hidden_size, tower.patch, tower.patch, 0)
    cut = Convolution(side_by_side, target, tower.patch, tower.patch, tower.patch_bias, own.precision, first=True)
    learned = (own.hidden_size * tower.class_token, own.hidden_size * tower.position_rows)
    width, elements = BYTES[own.precision], own.seq_length * own.hidden_size
    positions = Elementwise(
        elements,
        3.0 * width,
        1.0 * width,
        parameters=parameter_tensors(*filter(None, learned)),
        precision=own.precision,
        operation=EMBEDDING,
    )
    return cut, *(positions,) * any(learned), *(_norm(own, own.seq_length, own.hidden_size),) * tower.first_norm


def _projected(tower: VisionTower, text: Shape) -> Iterator[Operator]:
    """The last norm of the tower, its projectors, and the sums with states of the text."""
    own, way, rows = tower.of_images, tower.projector, tower.tokens
    square = way.merge**2
    features = own.hidden_size if way.pooled else own.hidden_size * square
    if tower.last_norm:
        yield _norm(own, own.seq_length, own.hidden_size)
    if way.norm:
        kind = own if way.norm_bias else replace(own, norm=replace(own.norm, kind="rmsnorm"))
        yield _norm(kind, rows if way.pooled else rows * square, own.hidden_size)
    yield from _products(own, way, rows, features)
    for _ in range(way.copies):
        yield _norm(own, rows, features)
        yield from _products(own, way, rows, features)
    # tokens of images take the place of those of the text, or are added to them
    width = BYTES[own.precision]
    yield Elementwise(
        rows * text.hidden_size * (1 + way.copies), 3.0 * width, 3.0 * width, precision=own.precision, operation=MERGE
    )


def _products(own: Shape, way: Projector, rows: int, features: int) -> Iterator[Operator]:
    for number, (inputs, outputs) in enumerate(zip((features, *way.widths), way.widths, strict=False)):
        if number:
            yield gelu(rows * inputs, own.precision)
        yield Linear(rows, inputs, outputs, way.bias, own.precision)
