"""A convolution over images.

It is priced as the matrix product that a library computes in its place, implicit GEMM: images x pixels by
output channels by input channels x window (Chetlur et al. 2014, arXiv:1410.0759, section 3). In fp32 its operands are
tf32, torch's default for cuDNN (torch.backends.cudnn.allow_tf32), or where there is no tf32 a 3 x 3 convolution is 16
products over tiles of 2 x 2 pixels (Winograd F(2x2, 3x3): Lavin and Gray 2015, arXiv:1509.09308, section 4.1); linear
layers stay fp32.
"""

from __future__ import annotations

from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.operator import Operator, ParameterTensor, matrix, parameter_tensors

Window = int | tuple[int, int]
"""Height and width of a window; one number for both."""


def sides(window: Window) -> tuple[int, int]:
    """Height and width of *window*."""
    return window if isinstance(window, tuple) else (window, window)


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

    def through(self, channels: int, window: Window, stride: int, padding: Window) -> Image:
        """What a window of that size, stride and padding makes of it. Raises `ScenarioError` if nothing is left."""
        (rows, columns), (above, beside) = sides(window), sides(padding)
        height = (self.height + 2 * above - rows) // stride + 1
        width = (self.width + 2 * beside - columns) // stride + 1
        if height < 1 or width < 1:
            raise ScenarioError(
                f"a window of {window} with padding {padding} does not fit an image of {self.height} x {self.width}"
            )
        return Image(channels, height, width)


CONVOLUTION = Operation("convolution", "product")
BIAS_GRADIENT = Operation("bias gradient", "elementwise", "convolution")
CONVERSION = Operation("layout conversion", "elementwise", "convolution")


@dataclass(frozen=True)
class Convolution(Operator):
    """A *window* over *source*, giving *target*.

    *first*: of the model, whose images need no gradient. *held*: another part keeps the same input. *channels_last*:
    channels of a pixel lie next to each other in memory.
    """

    source: Image
    target: Image
    window: Window
    stride: int
    bias: bool
    precision: str
    first: bool = False
    held: bool = False
    channels_last: bool = True

    @property
    def operation(self) -> Operation:
        """Beside the products there is the sum of the bias gradient."""
        return BIAS_GRADIENT

    @property
    def taps(self) -> int:
        """How many pixels its window has."""
        height, width = sides(self.window)
        return height * width

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """The filters, and the bias if there is one."""
        outputs = self.target.channels
        bias = parameter_tensors(outputs) if self.bias else ()
        return matrix(outputs, self.source.channels * self.taps), *bias

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """One product."""
        pixels = samples * self.target.height * self.target.width
        channels = self.target.channels, self.source.channels
        product = self._kernel(samples, (pixels, channels[0], channels[1] * self.taps), (ceil(pixels / 4), *channels))
        return *self._conversions(samples), product

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The transposed convolution; each input pixel meets 1/stride^2 of the window."""
        if self.first:
            return ()
        pixels = samples * self.source.height * self.source.width
        inner = ceil(self.target.channels * self.taps / self.stride**2)
        channels = self.source.channels, self.target.channels
        product = self._kernel(samples, (pixels, channels[0], inner), (ceil(pixels / 4), *channels))
        return *self._conversions(samples), product

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """A product over all pixels of all images; the bias gradient is a sum over the output's."""
        pixels = samples * self.target.height * self.target.width
        channels = self.target.channels, self.source.channels
        product = self._kernel(samples, (channels[0], channels[1] * self.taps, pixels), (*channels, ceil(pixels / 4)))
        products = *self._conversions(samples), product
        if not self.bias:
            return products
        return *products, memory_bound(samples * self.target.elements * BYTES[self.precision], precision=self.precision)

    def kept_bytes(self, samples: int) -> float:
        """Its input."""
        return 0.0 if self.held else float(samples * self.source.elements * BYTES[self.precision])

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output."""
        return self.kept_bytes(samples) + samples * self.target.elements * BYTES[self.precision]

    def _conversions(self, samples: int) -> tuple[Kernel, ...]:
        """Each pass converts two images, of the input's size and of the output's: both are read and written.

        The library does so within its call, which the host launches once.
        """
        if self.channels_last or BYTES[self.precision] == BYTES["fp32"]:
            return ()
        sizes = (samples * image.elements * BYTES[self.precision] for image in (self.source, self.target))
        return tuple(
            memory_bound(2 * size, precision=self.precision, launches=0, operation=CONVERSION) for size in sizes
        )

    def _kernel(self, samples: int, product: tuple[int, int, int], tiled: tuple[int, int, int]) -> Kernel:
        """FLOPs and bytes are the convolution's own; *product* reads pixels again, *tiled* is one of Winograd's 16."""
        filters = self.target.channels * self.source.channels * self.taps
        flops = 2 * samples * self.target.height * self.target.width * filters
        nbytes = BYTES[self.precision] * (samples * (self.source.elements + self.target.elements) + filters)
        if BYTES[self.precision] < BYTES["fp32"]:
            return Kernel(flops, nbytes, (1, *product), self.precision, operation=CONVOLUTION)
        winograd = (16, *tiled) if sides(self.window) == (3, 3) and self.stride == 1 else None
        return Kernel(flops, nbytes, (1, *product), "tf32", winograd=winograd, operation=CONVOLUTION)
