"""Diffusion models: transformers (DiT, and those with a stream of text beside that of the image: Stable Diffusion 3,
FLUX) and U-Nets with convolutions and attention (Stable Diffusion, SDXL).

Peebles and Xie 2023, "DiT" (arXiv:2212.09748, section 3.2): a latent image is cut into patches, and each layer's norms
have no parameters of their own, but a scale, a shift and a gate that a product makes from the time step and the class
(adaLN-Zero). Esser et al. 2024, "Stable Diffusion 3" (arXiv:2403.03206, figure 2): text has weights of its own in every
layer, and both attend to both; in the last layer only the image goes on. FLUX.1 has further layers with one stream,
whose attention and feed-forward network stand side by side (Black Forest Labs, flux/modules/layers.py). The autoencoder
and the encoders of text are left out: samples are latent images and vectors of text, made beforehand.

A U-Net with convolutions, and attention of latent images to themselves and to text (Stable Diffusion, SDXL).

Rombach et al. 2022 (arXiv:2112.10752, section 3.3), Podell et al. 2023, "SDXL" (arXiv:2307.01952, table 1). On the way
down each level has residual blocks, with transformers behind them where it has some, and halves the image; what each
block makes waits for the block on the way up that takes it too. A transformer has self-attention, cross attention to
the vectors of text, and a gated feed-forward network. Sizes are as diffusers has them (unet_2d_condition.py). The
autoencoder and the encoders of text are left out: samples are latent images and vectors of text, made beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.attentions.core_attention import CoreAttention, FlashAttention
from clustersim.workloads.operators.attentions.cross_attention import FlashCrossAttention
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, gelu, layer_norm, residual, rms_norm, rotary, swiglu
from clustersim.workloads.operators.embedding_and_loss import embedding
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Fused, Operator, fuses, parameter_tensors

FREQUENCIES = 256
"""Sines and cosines of a time step (facebookresearch/DiT, models.py, ``frequency_embedding_size``)."""

LATENT_BYTES = 4
"""A latent image reaches the GPU in fp32."""

MODULATION, GATE = Operation("modulation", "elementwise"), Operation("gated sum", "elementwise")
SQUARED_ERROR = Operation("squared error", "loss")


@dataclass(frozen=True)
class TextTokens:
    """*length* vectors of *features*, and one of *pooled* features; 0: there are none."""

    length: int = 0
    features: int = 0
    pooled: int = 0


@dataclass(frozen=True)
class Denoiser:
    """A diffusion transformer of *layers* with a stream each, then *single* layers with one stream.

    *image*: the latent image, cut into patches of *patch* pixels. *outputs*: channels that it predicts. *classes*: of
    images, 0: none. *guidance*: its scale is an input, too. *qk_norm*: queries and keys have norms, by head, and are
    rotated. *apart*: each layer embeds the time step and the class by weights of its own (diffusers).
    """

    layers: int
    single: int
    hidden: int
    heads: int
    width: int
    image: Image
    patch: int
    outputs: int
    classes: int = 0
    text: TextTokens = TextTokens()
    guidance: bool = False
    qk_norm: bool = False
    apart: bool = False
    flash: bool = True
    precision: str = "fp32"
    fused: Fused = True

    @property
    def positions(self) -> int:
        """Patches of an image."""
        return (self.image.height // self.patch) * (self.image.width // self.patch)

    @property
    def _bytes(self) -> int:
        return BYTES[self.precision]

    def linear(self, rows: int, inputs: int, outputs: int, splits: tuple[int, ...] = ()) -> Linear:
        """A product with bias."""
        return Linear(rows, inputs, outputs, True, self.precision, splits=splits)

    def modulation(self, parts: int) -> tuple[Operator, ...]:
        """*parts* vectors of scales, shifts and gates of a sample, from its condition."""
        own = self._condition() if self.apart and parts == PARTS_OF_A_LAYER else ()
        return *own, gelu(self.hidden, self.precision), self.linear(1, self.hidden, parts * self.hidden)

    def normed(self, rows: int) -> tuple[Operator, ...]:
        """A norm without parameters, then the scale and the shift."""
        norm = replace(layer_norm(rows, self.hidden, self.precision), weights=0.0, parameters=())
        width = self._bytes
        return norm, self._over(rows, 2 * width, 3 * width, width, MODULATION)

    def gated(self, rows: int) -> Operator:
        """The residual sum with a gate."""
        return self._over(rows, 3 * self._bytes, 3 * self._bytes, self._bytes, GATE)

    def _over(self, rows: int, forwards: float, backwards: float, kept: float, operation: Operation) -> Elementwise:
        return Elementwise(
            rows * self.hidden, forwards, backwards, kept=kept, precision=self.precision, operation=operation
        )

    def queries_keys(self, rows: int) -> tuple[Operator, ...]:
        """The norms of queries and keys."""
        norm = rms_norm(
            rows * self.heads, self.hidden // self.heads, self.precision, fused=fuses(self.fused, "rms_norm")
        )
        return (norm, norm) if self.qk_norm else ()

    def attention(self, rows: int) -> tuple[Operator, ...]:
        """Every position attends to every other."""
        sizes = rows, self.heads, self.heads, self.hidden // self.heads, False
        turned = rotary(2 * rows * self.hidden, self.precision, fused=fuses(self.fused, "rope"))
        if self.flash:
            core: CoreAttention = FlashAttention(*sizes, precision=self.precision, causal=False)
        else:
            core = CoreAttention(*sizes, fuses(self.fused, "softmax"), self.precision)
        return *((turned,) if self.qk_norm else ()), core

    def into_attention(self, rows: int) -> tuple[Operator, ...]:
        """The norm and the products of queries, keys and values of one stream."""
        made = self.linear(rows, self.hidden, 3 * self.hidden, (self.hidden,) * 3)
        return *self.normed(rows), made, *self.queries_keys(rows)

    def after_attention(self, rows: int) -> tuple[Operator, ...]:
        """The product of the output, and the feed-forward network of one stream."""
        return (
            self.linear(rows, self.hidden, self.hidden),
            self.gated(rows),
            *self.normed(rows),
            self.linear(rows, self.hidden, self.width),
            gelu(rows * self.width, self.precision),
            self.linear(rows, self.width, self.hidden),
            self.gated(rows),
        )

    def layer(self, *, last: bool) -> tuple[Operator, ...]:
        """A layer with the stream of the image, and that of text if there is one; the text of the *last* one ends."""
        text, rows = self.text.length, self.positions
        beside = (*self.modulation(2 if last else PARTS_OF_A_LAYER), *self.into_attention(text)) if text else ()
        after = self.after_attention(text) if text and not last else ()
        return (
            *self.modulation(PARTS_OF_A_LAYER),
            *self.into_attention(rows),
            *beside,
            *self.attention(rows + text),
            *self.after_attention(rows),
            *after,
        )

    def single_layer(self) -> tuple[Operator, ...]:
        """Attention and the feed-forward network of one norm, with one product behind both."""
        rows, hidden = self.positions + self.text.length, self.hidden
        return (
            *self.modulation(3),
            *self.normed(rows),
            self.linear(rows, hidden, 3 * hidden + self.width, (hidden, hidden, hidden, self.width)),
            *self.queries_keys(rows),
            *self.attention(rows),
            gelu(rows * self.width, self.precision),
            self.linear(rows, hidden + self.width, hidden),
            self.gated(rows),
        )

    def embedding(self) -> tuple[Operator, ...]:
        """Patches, the vectors of text, and the condition."""
        target = self.image.through(self.hidden, self.patch, self.patch, 0)
        patches = Convolution(self.image, target, self.patch, self.patch, True, self.precision, first=True)
        text = (self.linear(self.text.length, self.text.features, self.hidden),) if self.text.length else ()
        return patches, *text, *(() if self.apart else self._condition())

    def _condition(self) -> tuple[Operator, ...]:
        """The vector of the time step, with those of guidance, of text and of the class where there are some."""
        inputs = (FREQUENCIES, FREQUENCIES * self.guidance, self.text.pooled)
        made: list[Operator] = []
        for features in filter(None, inputs):
            made += self.linear(1, features, self.hidden), gelu(self.hidden, self.precision)
            made.append(self.linear(1, self.hidden, self.hidden))
        if self.classes:
            # one more for images without a class (classifier-free guidance)
            made.append(embedding((self.classes + 1,), 1, self.hidden, self.precision))
        return tuple(made)

    def head(self) -> tuple[Operator, ...]:
        """The last norm, the pixels of each patch, and the squared error."""
        rows, pixels = self.positions, self.patch**2 * self.outputs
        loss = Elementwise(
            rows * pixels,
            2.0 * self._bytes,
            3.0 * self._bytes,
            kept=self._bytes,
            precision=self.precision,
            operation=SQUARED_ERROR,
        )
        return *self.modulation(2), *self.normed(rows), self.linear(rows, self.hidden, pixels), loss

    def every_layer(self) -> Iterator[OperatorLayer]:
        """From the embedding to the head."""
        nbytes = float((self.positions + self.text.length) * self.hidden * self._bytes)
        yield OperatorLayer("embedding", "embedding", self.embedding(), nbytes)
        made = OperatorLayer("layer 0", "transformer", self.layer(last=False), nbytes)
        ends = self.text.length > 0 and self.single == 0
        for number in range(self.layers):
            if ends and number == self.layers - 1:
                yield OperatorLayer(f"layer {number}", "transformer", self.layer(last=True), nbytes)
            else:
                yield made.again(f"layer {number}")
        one = OperatorLayer("single", "transformer", self.single_layer(), nbytes)
        for number in range(self.single):
            yield one.again(f"layer {self.layers + number}")
        yield OperatorLayer("head", "head", self.head(), 4.0)


PARTS_OF_A_LAYER = 6
"""Scale, shift and gate of attention, and of the feed-forward network."""


def diffusion_transformer(of: Denoiser, name: str = "diffusion") -> Model:
    """The model of *of*. A sample is a latent image, and vectors of text in the precision of the model."""
    text = (of.text.length * of.text.features + of.text.pooled) * BYTES[of.precision]
    sample = float(LATENT_BYTES * of.image.elements + text)
    return Model(name, list(of.every_layer()), sample, precision=of.precision, fused=of.fused)


GROUP_NORM, UPSAMPLING = Operation("group norm", "normalisation"), Operation("upsampling", "elementwise")
JOINED = Operation("concatenation", "elementwise")


@dataclass(frozen=True)
class UNetLevel:
    """*channels*, and layers of the transformer behind each residual block; 0: there is none."""

    channels: int
    transformer: int = 0


class UNet:
    """Adds block after block, and tracks the image and those that wait for the way up."""

    def __init__(
        self, image: Image, text: TextTokens, head_size: int, precision: str = "fp32", fused: Fused = True
    ) -> None:
        self.first, self.image, self.text, self.head_size = image, image, text, head_size
        self.precision, self.fused = precision, fused
        self.layers: list[OperatorLayer] = []
        self.waiting: list[Image] = []
        self.condition = 0

    def model(self, name: str, levels: Sequence[UNetLevel], blocks: int, outputs: int) -> Model:
        """The whole: *blocks* residual blocks of each level on the way down, one more on the way up."""
        self._begin(levels[0].channels)
        for number, level in enumerate(levels):
            for block in range(blocks):
                self._block(f"down {number}.{block}", level.channels, level.transformer)
                self.waiting.append(self.image)
            if number < len(levels) - 1:
                self._sampled(f"down {number}", 2)
                self.waiting.append(self.image)
        middle = levels[-1]
        self._block("middle 0", middle.channels, middle.transformer)
        self._block("middle 1", middle.channels, 0)
        for number, level in enumerate(reversed(levels)):
            for block in range(blocks + 1):
                self._block(f"up {number}.{block}", level.channels, level.transformer, self.waiting.pop())
            if number < len(levels) - 1:
                self._sampled(f"up {number}", 0)
        self._end(outputs)
        text = (self.text.length * self.text.features + self.text.pooled) * BYTES[self.precision]
        sample = float(LATENT_BYTES * self.first.elements + text)
        return Model(name, self.layers, sample, precision=self.precision, fused=self.fused)

    def _begin(self, channels: int) -> None:
        """The first convolution, and the vector of the time step and of the text."""
        self.condition = 4 * channels
        made: list[Operator] = [self._convolution(channels, 3, first=True)]
        for features in filter(None, (channels, self.text.pooled)):
            made += self._linear(1, features, self.condition), gelu(self.condition, self.precision)
            made.append(self._linear(1, self.condition, self.condition))
        self._append("begin", made)
        self.waiting.append(self.image)

    def _end(self, outputs: int) -> None:
        norm = self._norm(self.image.channels)
        made = [*norm, self._convolution(outputs, 3)]
        width = BYTES[self.precision]
        made.append(self._elementwise(self.image.elements, 2 * width, 3 * width, width, SQUARED_ERROR))
        self.layers.append(OperatorLayer("end", "convolution", tuple(made), 4.0))

    def _block(self, name: str, channels: int, transformer: int, skipped: Image | None = None) -> None:
        """A residual block, of the image and of one that waited, and the transformer behind it."""
        width, made = BYTES[self.precision], list[Operator]()
        if skipped:
            self.image = Image(self.image.channels + skipped.channels, self.image.height, self.image.width)
            made.append(self._elementwise(self.image.elements, 2 * width, 2 * width, 0, JOINED))
        source = self.image
        made += (*self._norm(source.channels), self._convolution(channels, 3))
        made += gelu(self.condition, self.precision), self._linear(1, self.condition, channels)
        made += (*self._norm(channels), self._convolution(channels, 3))
        if source.channels != channels:
            made.append(Convolution(source, self.image, 1, 1, True, self.precision, held=True))
        made.append(residual(self.image.elements, self.precision, self.precision, drop=False))
        self._append(name, made)
        if transformer:
            self._append(f"{name} transformer", self._transformer(transformer), "transformer")

    def _transformer(self, layers: int) -> list[Operator]:
        """A group norm, a product, the layers, and a product, around a residual sum."""
        rows, hidden = self.image.height * self.image.width, self.image.channels
        added = residual(rows * hidden, self.precision, self.precision, drop=False)
        norm = layer_norm(rows, hidden, self.precision)
        heads, sizes = hidden // self.head_size, self.head_size
        into = Linear(rows, hidden, 3 * hidden, False, self.precision, splits=(hidden,) * 3)
        asked = Linear(rows, hidden, hidden, False, self.precision)
        answers = Linear(self.text.length, self.text.features, 2 * hidden, False, self.precision, splits=(hidden,) * 2)
        output = self._linear(rows, hidden, hidden)
        own = FlashAttention(rows, heads, heads, sizes, False, precision=self.precision, causal=False)
        across = FlashCrossAttention(rows, heads, heads, sizes, False, precision=self.precision, keys=self.text.length)
        gated = swiglu(rows * 4 * hidden, self.precision, fused=fuses(self.fused, "swiglu"), separate=False)
        network = self._linear(rows, hidden, 8 * hidden), gated, self._linear(rows, 4 * hidden, hidden)
        layer = (norm, into, own, output, added, norm, asked, answers, across, output, added, norm, *network, added)
        return [self._group_norm(hidden), output, *layer * layers, output, added]

    def _sampled(self, name: str, stride: int) -> None:
        """Half the height and width by a convolution of *stride* 2, or (0) twice both, and a convolution."""
        channels, made = self.image.channels, list[Operator]()
        if not stride:
            self.image = Image(channels, 2 * self.image.height, 2 * self.image.width)
            # a quarter of the pixels is read, all are written; backward the other way round
            moved = 1.25 * BYTES[self.precision]
            made.append(self._elementwise(self.image.elements, moved, moved, 0, UPSAMPLING))
        self._append(name, [*made, self._convolution(channels, 3, stride or 1)])

    def _convolution(self, channels: int, window: int, stride: int = 1, *, first: bool = False) -> Operator:
        source = self.image
        self.image = source.through(channels, window, stride, window // 2)
        return Convolution(source, self.image, window, stride, True, self.precision, first=first)

    def _norm(self, channels: int) -> tuple[Operator, ...]:
        """A group norm and a SiLU."""
        return self._group_norm(channels), gelu(self.image.height * self.image.width * channels, self.precision)

    def _group_norm(self, channels: int) -> Elementwise:
        """Reads twice, for the statistics and to normalise; backward likewise, as a batch norm."""
        width, elements = BYTES[self.precision], self.image.height * self.image.width * channels
        return Elementwise(
            elements,
            3.0 * width,
            5.0 * width,
            kept=width,
            parameters=parameter_tensors(channels, channels),
            precision=self.precision,
            operation=GROUP_NORM,
        )

    def _linear(self, rows: int, inputs: int, outputs: int) -> Linear:
        return Linear(rows, inputs, outputs, True, self.precision)

    def _elementwise(
        self, elements: int, forwards: float, backwards: float, kept: float, operation: Operation
    ) -> Elementwise:
        return Elementwise(elements, forwards, backwards, kept=kept, precision=self.precision, operation=operation)

    def _append(self, name: str, operators: Sequence[Operator], kind: str = "convolution") -> None:
        """A layer passes on its image, and those that wait."""
        waits = sum(image.elements for image in self.waiting) * BYTES[self.precision]
        output = float(self.image.elements * BYTES[self.precision] + waits)
        self.layers.append(OperatorLayer(name, kind, tuple(operators), output, passed_on=float(waits)))
