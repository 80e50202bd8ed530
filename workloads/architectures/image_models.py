"""Models of images: convolutional ones, and vision transformers (ViT).

A convolutional model has convolutions with their norms and activations, and linear layers at the end. A vision
transformer cuts an image into patches, which are the tokens of an encoder (Dosovitskiy et al. 2021, arXiv:2010.11929,
section 3.1). A class token stands before the patches; its last state gives the class. Norms stand before each block,
and every position sees all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.layer_parts import norm_operator
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import Transformer, transformer
from clustersim.workloads.operators.convolution import Convolution, Image, Window, sides
from clustersim.workloads.operators.elementwise import RESIDUAL, Elementwise, dropout, elementary
from clustersim.workloads.operators.embedding_and_loss import EMBEDDING, cross_entropy
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator, parameter_tensors

BATCH_NORM = Operation("batch norm", "normalisation")
RELU, POOLING = Operation("ReLU", "elementwise"), Operation("pooling", "elementwise")
CONCATENATION = Operation("concatenation", "elementwise")

PIXEL_BYTES = 4
"""An image reaches the GPU in fp32, whatever the precision of the products."""

INDEX_BYTES = 8
"""torch's max pooling keeps the int64 index of each maximum."""


class ConvolutionalBuilder:
    """Adds layer after layer to a model that begins with *image*, and tracks the size of the image.

    >>> builder = ConvolutionalBuilder(Image(3, 224, 224))
    >>> builder.convolution("conv1", 64, 7, stride=2, norm=True)
    >>> builder.image
    Image(channels=64, height=112, width=112)
    """

    def __init__(
        self, image: Image, precision: str = "fp32", fused: bool = False, *, channels_last: bool = True
    ) -> None:
        self.first, self.image = image, image
        self.precision, self.fused, self.channels_last = precision, fused, channels_last
        self.layers: list[OperatorLayer] = []
        self._prefix = ""

    def branches(self, name: str, each: Sequence[Callable[[], None]]) -> None:
        """Branches over one image, each added by a function; their channels are concatenated, which is a copy.

        Raises `ScenarioError` for branches of unequal height or width.
        """
        source, outer = self.image, self._prefix
        made: list[Image] = []
        for number, add in enumerate(each):
            self.image, self._prefix = source, f"{outer}{name}.{number}."
            add()
            made.append(self.image)
        if len({(image.height, image.width) for image in made}) > 1:
            shown = ", ".join(f"{image.height} x {image.width}" for image in made)
            raise ScenarioError(f"the branches of {name} make images of {shown}; all must be of one size")
        self.image, self._prefix = Image(sum(image.channels for image in made), made[0].height, made[0].width), outer
        last = self.layers.pop()
        output = float(self.image.elements * BYTES[self.precision])
        self.layers.append(
            OperatorLayer(
                last.name, last.kind, (*last.operators, self._elementwise(self.image, 2, 2, CONCATENATION)), output
            )
        )

    def convolution(
        self,
        name: str,
        channels: int,
        window: Window,
        *,
        stride: int = 1,
        padding: Window | None = None,
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

    def basic(self, name: str, channels: int, stride: int = 1) -> None:
        """ResNet's block of two 3x3 convolutions to *channels*, its input added to its output.

        The first convolution has the stride. Where sizes differ, the input passes a 1x1 convolution of its own
        (torchvision, models/resnet.py, BasicBlock).
        """
        source, through = self.image, self.image.elements * BYTES[self.precision]
        projected = stride != 1 or source.channels != channels
        self._convolve(f"{name}.conv1", source, channels, 3, stride, carried=through)
        self._convolve(
            f"{name}.conv2", self.image, channels, 3, relu=not projected, added=not projected,
            carried=through if projected else 0,
        )  # fmt: skip
        if projected:
            self._convolve(f"{name}.downsample", source, channels, 1, stride, 0, added=True, held=True)

    def max_pool(self, window: int, stride: int, padding: int = 0) -> None:
        """A pooling, part of the layer before it."""
        target = self.image.through(self.image.channels, window, stride, padding)
        self._pool(target, kept=self.image.elements * BYTES[self.precision] + INDEX_BYTES * target.elements)

    def average_pool(self, size: int = 1) -> None:
        """To *size* x *size* pixels (torch's AdaptiveAvgPool2d), part of the layer before it."""
        self._pool(Image(self.image.channels, size, size), kept=0)

    def linear(self, name: str, features: int, *, activation: bool = False, drop: bool = False) -> None:
        """A linear layer with bias over the flattened image; *drop*: a dropout before it."""
        dropped = (dropout(self.image.elements, self.precision),) if drop else ()
        operators: tuple[Operator, ...] = (*dropped, Linear(1, self.image.elements, features, precision=self.precision))
        self.image = Image(features, 1, 1)
        self._append(name, "linear", (*operators, *([self._relu(self.image)] if activation else [])))

    def model(self, name: str, notes: tuple[str, ...] = ()) -> Model:
        """The layers added so far; the last one gets the loss over its outputs as classes."""
        loss = cross_entropy(1, self.image.elements, self.precision, "fused" if self.fused else "eager")
        last = self.layers[-1]
        # a model passes on its loss, one fp32 number
        layers = [*self.layers[:-1], OperatorLayer(last.name, last.kind, (*last.operators, loss), 4.0)]
        sample_bytes = float(PIXEL_BYTES * self.first.elements)
        return Model(name, layers, sample_bytes, precision=self.precision, fused=self.fused, notes=notes)

    def _convolve(
        self,
        name: str,
        source: Image,
        channels: int,
        window: Window,
        stride: int = 1,
        padding: Window | None = None,
        *,
        norm: bool = True,
        relu: bool = True,
        added: bool = False,
        held: bool = False,
        carried: int = 0,
    ) -> None:
        """*added*: another branch of the block is added to the output. *carried*: its bytes, while it waits."""
        height, width = sides(window)
        target = source.through(channels, window, stride, (height // 2, width // 2) if padding is None else padding)
        first = not self.layers
        convolution = Convolution(
            source, target, window, stride, not norm, self.precision, first, held, self.channels_last
        )
        operators: list[Operator] = [convolution]
        if norm:
            operators.append(self._norm(target, relu, added))
        if added and not (norm and self.fused):
            operators.append(self._elementwise(target, 3, 3, elementary("add", RESIDUAL.name)))
        if relu and not (norm and self.fused):
            operators.append(self._relu(target))
        self.image = target
        self._append(name, "convolution", tuple(operators), carried)

    def _norm(self, image: Image, relu: bool, added: bool) -> Elementwise:
        """Reads twice, for the statistics and to normalise; backward likewise. Fused with what follows it, or not.

        Over contiguous images cuDNN's kernels have one block of threads for each channel (``bn_fw_tr_1C11``,
        ``bn_bw_1C11``).
        """
        width = BYTES[self.precision]
        more = int(relu) + int(added) if self.fused else 0
        forwards, backwards = (3 + int(added and self.fused)) * width, (5 + more) * width
        tensors = parameter_tensors(image.channels, image.channels)
        return Elementwise(
            image.elements,
            forwards,
            backwards,
            kept=width,
            parameters=tensors,
            precision=self.precision,
            operation=BATCH_NORM,
            blocks=0 if self.channels_last else image.channels,
        )

    def _relu(self, image: Image) -> Elementwise:
        """In place: the operator after it keeps its output as input."""
        return self._elementwise(image, 2, 3, RELU)

    def _elementwise(self, image: Image, forwards: int, backwards: int, operation: Operation) -> Elementwise:
        width = BYTES[self.precision]
        bytes_moved = forwards * width, backwards * width
        return Elementwise(image.elements, *bytes_moved, precision=self.precision, operation=operation)

    def _pool(self, target: Image, kept: int) -> None:
        width = BYTES[self.precision]
        each = width * (1 + self.image.elements / target.elements)
        pool = Elementwise(
            target.elements, each, each, kept=kept / target.elements, precision=self.precision, operation=POOLING
        )
        last = self.layers.pop()
        self.image = target
        output = target.elements * BYTES[self.precision]
        self.layers.append(OperatorLayer(last.name, last.kind, (*last.operators, pool), float(output)))

    def _append(self, name: str, kind: str, operators: tuple[Operator, ...], carried: int = 0) -> None:
        output = self.image.elements * BYTES[self.precision] + carried
        self.layers.append(OperatorLayer(self._prefix + name, kind, operators, float(output)))


@dataclass(frozen=True, kw_only=True)
class VisionTransformer(Transformer):
    """A vision transformer of *image*, cut into patches of *patch_size* pixels."""

    image: Image
    patch_size: int

    def reshaped(self, **changes: Any) -> VisionTransformer:
        """The model with *changes* to fields of its shape."""
        return vision_transformer(replace(self.shape, **changes), self.image, self.patch_size, self.name)


def vision_transformer(shape: Shape, image: Image, patch_size: int, name: str = "vision") -> VisionTransformer:
    """The model of *shape*; its sequence is class tokens and the patches, its vocabulary the classes.

    >>> from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention
    >>> parts = SelfAttention(12, 12, mask="full"), Mlp(3072), Norm(), Embedding(tied=False)
    >>> base = Shape(12, 768, 197, 1000, *parts)
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
    """A convolution whose windows are the patches; class tokens before them, and learned positions."""
    hidden, precision = shape.hidden_size, shape.precision
    target = image.through(hidden, patch_size, patch_size, 0)
    cut = Convolution(image, target, patch_size, patch_size, True, precision, first=True)
    elements, width = shape.seq_length * hidden, BYTES[precision]
    class_tokens = shape.whole_length - target.height * target.width
    tensors = parameter_tensors(*filter(None, (class_tokens * hidden, elements)))
    positions = Elementwise(
        elements, 3.0 * width, 1.0 * width, parameters=tensors, precision=precision, operation=EMBEDDING
    )
    return cut, positions, *((dropout(elements, precision),) if shape.dropout else ())


def _classes(shape: Shape) -> tuple[Operator, ...]:
    """A norm, the product of the class token's state that gives the classes, and the loss."""
    norm = norm_operator(shape)
    logits = Linear(1, shape.hidden_size, shape.vocab_size, precision=shape.precision)
    return norm, logits, cross_entropy(1, shape.vocab_size, shape.precision, shape.loss)
