"""A U-Net with convolutions, and attention of latent images to themselves and to text (Stable Diffusion, SDXL).

Rombach et al. 2022 (arXiv:2112.10752, section 3.3), Podell et al. 2023, "SDXL" (arXiv:2307.01952, table 1). On the way
down each level has residual blocks, with transformers behind them where it has some, and halves the image; what each
block makes waits for the block on the way up that takes it too. A transformer has self-attention, cross attention to
the vectors of text, and a gated feed-forward network. Sizes are as diffusers has them (unet_2d_condition.py). The
autoencoder and the encoders of text are left out: samples are latent images and vectors of text, made beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.workloads.architectures.diffusion import LATENT_BYTES, SQUARED_ERROR, TextTokens
from clustersim.workloads.operators.attentions.core_attention import FlashAttention
from clustersim.workloads.operators.attentions.cross_attention import FlashCrossAttention
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, gelu, layer_norm, residual, swiglu
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.operator_names import Fused, fuses
from clustersim.workloads.operators.parameter import parameter_tensors

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
