"""A causal transformer that sees images: a tower of image layers and a projector ahead of its own layers.

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
from dataclasses import dataclass, fields, replace
from typing import Any

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.workloads.architectures.image_models import PIXEL_BYTES
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import Transformer, transformer, transformer_operators
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, gelu, layer_norm, rms_norm
from clustersim.workloads.operators.embedding import EMBEDDING
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import parameter_tensors
from clustersim.workloads.operators.sharded import WHOLE, Cut

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
