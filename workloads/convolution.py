"""A convolutional model is a row of convolutions, each with its norm and activation, and of linear layers at the end.

A convolution is priced as the matrix product that a library computes in its place, implicit GEMM: images x pixels by
output channels by input channels x window (Chetlur et al. 2014, arXiv:1410.0759, section 3). In fp32 its operands are
tf32, torch's default for cuDNN (torch.backends.cudnn.allow_tf32), or where there is no tf32 a 3 x 3 convolution is 16
products over tiles of 2 x 2 pixels (Winograd F(2x2, 3x3): Lavin and Gray 2015, arXiv:1509.09308, section 4.1); linear
layers stay fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from simulator.errors import ScenarioError
from simulator.kernel import BYTES, Kernel, memory_bound
from workloads.elementwise import cross_entropy, dropout
from workloads.model import Model
from workloads.part import Elementwise, Linear, Part, PartedLayer

PIXEL_BYTES = 4
"""An image reaches the GPU in fp32, whatever the precision of the products."""

INDEX_BYTES = 8
"""torch's max pooling keeps the int64 index of each maximum."""


@dataclass(frozen=True, slots=True)
class Image:
    """*channels* of *height* x *width* pixels."""

    channels: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return self.channels * self.height * self.width

    def through(self, channels: int, window: int, stride: int, padding: int) -> Image:
        """What a window of that size, stride and padding makes of it. Raises `ScenarioError` if nothing is left."""
        height = (self.height + 2 * padding - window) // stride + 1
        width = (self.width + 2 * padding - window) // stride + 1
        if height < 1 or width < 1:
            raise ScenarioError(
                f"a window of {window} with padding {padding} does not fit an image of {self.height} x {self.width}"
            )
        return Image(channels, height, width)


@dataclass(frozen=True)
class Convolution(Part):
    """*window* x *window* over *source*, giving *target*.

    *first*: of the model, whose images need no gradient. *held*: another part keeps the same input.
    """

    source: Image
    target: Image
    window: int
    stride: int
    bias: bool
    precision: str
    first: bool = False
    held: bool = False

    @property
    def tensors(self) -> tuple[int, ...]:
        """The filters, and the bias if there is one."""
        filters = self.target.channels * self.source.channels * self.window**2
        return (filters, self.target.channels) if self.bias else (filters,)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """One product."""
        pixels = samples * self.target.height * self.target.width
        channels = self.target.channels, self.source.channels
        return (
            self._kernel(samples, (pixels, channels[0], channels[1] * self.window**2), (ceil(pixels / 4), *channels)),
        )

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The transposed convolution; each input pixel meets 1/stride^2 of the window."""
        if self.first:
            return ()
        pixels = samples * self.source.height * self.source.width
        inner = ceil(self.target.channels * self.window**2 / self.stride**2)
        channels = self.source.channels, self.target.channels
        return (self._kernel(samples, (pixels, channels[0], inner), (ceil(pixels / 4), *channels)),)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """A product over all pixels of all images; the bias gradient is a sum over the output's."""
        pixels = samples * self.target.height * self.target.width
        channels = self.target.channels, self.source.channels
        product = self._kernel(
            samples, (channels[0], channels[1] * self.window**2, pixels), (*channels, ceil(pixels / 4))
        )
        if not self.bias:
            return (product,)
        return product, memory_bound(samples * self.target.elements * BYTES[self.precision], precision=self.precision)

    def kept_bytes(self, samples: int) -> float:
        """Its input."""
        return 0.0 if self.held else float(samples * self.source.elements * BYTES[self.precision])

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output."""
        return self.kept_bytes(samples) + samples * self.target.elements * BYTES[self.precision]

    def _kernel(self, samples: int, product: tuple[int, int, int], tiled: tuple[int, int, int]) -> Kernel:
        """FLOPs and bytes are the convolution's own; *product* reads pixels again, *tiled* is one of Winograd's 16."""
        filters = self.target.channels * self.source.channels * self.window**2
        flops = 2 * samples * self.target.height * self.target.width * filters
        nbytes = BYTES[self.precision] * (samples * (self.source.elements + self.target.elements) + filters)
        if self.precision != "fp32":
            return Kernel(flops, nbytes, (1, *product), self.precision)
        winograd = (16, *tiled) if self.window == 3 and self.stride == 1 else None
        return Kernel(flops, nbytes, (1, *product), "tf32", winograd=winograd)


class ConvolutionalBuilder:
    """Adds layer after layer to a model that begins with *image*, keeping count of the image's size.

    >>> builder = ConvolutionalBuilder(Image(3, 224, 224))
    >>> builder.convolution("conv1", 64, 7, stride=2, norm=True)
    >>> builder.image
    Image(channels=64, height=112, width=112)
    """

    def __init__(self, image: Image, precision: str = "fp32", fused: bool = False) -> None:
        self.first, self.image = image, image
        self.precision, self.fused = precision, fused
        self.layers: list[PartedLayer] = []

    def convolution(
        self,
        name: str,
        channels: int,
        window: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        norm: bool = False,
        activation: bool = True,
    ) -> None:
        """A convolution of its own, a batch norm (then it has no bias) and a ReLU; *padding* half the window."""
        self._convolve(name, self.image, channels, window, stride, padding, norm=norm, relu=activation)

    def bottleneck(self, name: str, channels: int, stride: int = 1) -> None:
        """ResNet's block of 1x1, 3x3, 1x1 convolutions to 4 x *channels*, its input added to its output.

        The stride is in the 3x3, as torchvision has it ("ResNet v1.5"); where sizes differ, the input passes a 1x1
        convolution of its own (He et al. 2015, arXiv:1512.03385, figure 5).
        """
        source, through = self.image, self.image.elements * BYTES[self.precision]
        projected = stride != 1 or source.channels != 4 * channels
        self._convolve(f"{name}.conv1", source, channels, 1, carried=through)
        self._convolve(f"{name}.conv2", self.image, channels, 3, stride, carried=through)
        self._convolve(
            f"{name}.conv3", self.image, 4 * channels, 1, relu=not projected, added=not projected,
            carried=through if projected else 0,
        )  # fmt: skip
        if projected:
            self._convolve(f"{name}.downsample", source, 4 * channels, 1, stride, 0, added=True, held=True)

    def max_pool(self, window: int, stride: int, padding: int = 0) -> None:
        """Joins the layer before it."""
        target = self.image.through(self.image.channels, window, stride, padding)
        self._pool(target, kept=self.image.elements * BYTES[self.precision] + INDEX_BYTES * target.elements)

    def average_pool(self, size: int = 1) -> None:
        """To *size* x *size* pixels (torch's AdaptiveAvgPool2d); joins the layer before it."""
        self._pool(Image(self.image.channels, size, size), kept=0)

    def linear(self, name: str, features: int, *, activation: bool = False, drop: bool = False) -> None:
        """A linear layer with bias over the flattened image; *drop*: a dropout before it."""
        dropped = (dropout(self.image.elements, self.precision),) if drop else ()
        parts: tuple[Part, ...] = (*dropped, Linear(1, self.image.elements, features, precision=self.precision))
        self.image = Image(features, 1, 1)
        self._append(name, "linear", (*parts, *([self._relu(self.image)] if activation else [])))

    def model(self, name: str, notes: tuple[str, ...] = ()) -> Model:
        """What was added, the last layer with the loss over its outputs as classes."""
        loss = cross_entropy(1, self.image.elements, self.precision, fused=self.fused)
        last = self.layers[-1]
        # a model hands on its loss, one fp32 number
        layers = [*self.layers[:-1], PartedLayer(last.name, last.kind, (*last.parts, loss), 4.0)]
        sample_bytes = float(PIXEL_BYTES * self.first.elements)
        return Model(name, layers, sample_bytes, precision=self.precision, fused=self.fused, notes=notes)

    def _convolve(
        self,
        name: str,
        source: Image,
        channels: int,
        window: int,
        stride: int = 1,
        padding: int | None = None,
        *,
        norm: bool = True,
        relu: bool = True,
        added: bool = False,
        held: bool = False,
        carried: int = 0,
    ) -> None:
        """*added*: another branch of the block is added to the output; *carried*: its bytes, where it is yet to be."""
        target = source.through(channels, window, stride, window // 2 if padding is None else padding)
        first = not self.layers
        parts: list[Part] = [Convolution(source, target, window, stride, not norm, self.precision, first, held)]
        if norm:
            parts.append(self._norm(target, relu, added))
        if added and not (norm and self.fused):
            parts.append(self._elementwise(target, 3, 3))
        if relu and not (norm and self.fused):
            parts.append(self._relu(target))
        self.image = target
        self._append(name, "convolution", tuple(parts), carried)

    def _norm(self, image: Image, relu: bool, added: bool) -> Elementwise:
        """Reads twice, for the statistics and to normalise; backward likewise. Fused with what follows it, or not."""
        width = BYTES[self.precision]
        more = int(relu) + int(added) if self.fused else 0
        forwards, backwards = (3 + int(added and self.fused)) * width, (5 + more) * width
        counts = (image.channels, image.channels)
        return Elementwise(
            image.elements, forwards, backwards, kept=width, counts=counts, launches=(1, 1), precision=self.precision
        )

    def _relu(self, image: Image) -> Elementwise:
        """In place: what it keeps is the input of what follows."""
        return self._elementwise(image, 2, 3)

    def _elementwise(self, image: Image, forwards: int, backwards: int) -> Elementwise:
        width = BYTES[self.precision]
        return Elementwise(image.elements, forwards * width, backwards * width, precision=self.precision)

    def _pool(self, target: Image, kept: int) -> None:
        width = BYTES[self.precision]
        each = width * (1 + self.image.elements / target.elements)
        pool = Elementwise(target.elements, each, each, kept=kept / target.elements, precision=self.precision)
        last = self.layers.pop()
        self.image = target
        self._append(last.name, last.kind, (*last.parts, pool))

    def _append(self, name: str, kind: str, parts: tuple[Part, ...], carried: int = 0) -> None:
        output = self.image.elements * BYTES[self.precision] + carried
        self.layers.append(PartedLayer(name, kind, parts, float(output)))
