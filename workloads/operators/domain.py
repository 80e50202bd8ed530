"""Layers of a convolutional model on ranks that share every micro-batch: by domain, by model or by batch; and operators
over a rank's share of the samples.

*domain*: images are cut into bands of rows, and each rank convolves one. It needs floor(k / 2) rows from each of its
neighbours for a window of k: a halo. The weights are on every rank. *model*: a rank has some of the outputs, which are
gathered for the next layer; the gradient of the inputs is summed. *batch*: a rank has some of the samples. Between
layers of different ways, activations change their layout.

Gholami et al. 2018, "Integrated Model, Batch, and Domain Parallelism in Training Neural Networks" (arXiv:1712.04432,
section 2), where such ranks are the rows of a grid Pr x Pc. Bands of an image may differ by a row, and shares of
outputs by one; all ranks compute as long as the one with most. Poolings need no halo here, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.convolution import Convolution, Image, sides
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.operators.operator import SHIFT, Exchange, Operator, ParameterTensor, Segment, Way
from clustersim.workloads.operators.sharded import Grid, ShardedOperator, Side

Layout = Literal["bands", "whole", "samples"]
"""What a rank has of the activations between layers: bands of all images, all of it, or some of the samples."""

LAYOUTS: Mapping[Way, Layout] = {"domain": "bands", "model": "whole", "batch": "samples"}
"""The layout that each way takes and gives."""


@dataclass(frozen=True)
class Halo(Operator):
    """A convolution of a band, with the halos that it exchanges over *over* before its kernels.

    Forward these are rows of the input, backward rows of the gradient of the output (none if nobody needs that of the
    input).
    """

    band: Convolution
    over: str
    parameters: tuple[ParameterTensor, ...]

    @property
    def operation(self) -> Operation:
        """As the band's."""
        return self.band.operation

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the band's."""
        return self.band.forward(samples)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """As the band's."""
        return self.band.backward_input(samples)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """As the band's."""
        return self.band.backward_weights(samples)

    def kept_bytes(self, samples: int) -> float:
        """The band of the input."""
        return self.band.kept_bytes(samples)

    def weight_bytes(self, samples: int) -> float:
        """The bands of the input and of the gradient of the output."""
        return self.band.weight_bytes(samples)

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """The halo's exchange, if there is one, then the kernels."""
        (convolution,) = super().segments(phase, samples)
        image = {"F": self.band.source, "I": None if self.band.first else self.band.target}.get(phase)
        rows = sides(self.band.window)[0] // 2
        if image is None or not rows:
            return (convolution,)
        nbytes = float(samples * rows * image.width * image.channels * BYTES[self.band.precision])
        up, down = (Exchange(SHIFT, nbytes, self.over, distance=step, wraps=False) for step in (1, -1))
        return Segment((), within=(up, down)), convolution


def divided(layers: Sequence[OperatorLayer], ways: Sequence[Way], side: Side, joint: str) -> list[OperatorLayer]:
    """*layers*, each in its way, on one of the ranks of *side*; equal weights are reduced over the axis *joint*.

    Activations change their layout where the way changes.
    """
    made = []
    before: Layout = LAYOUTS[ways[0]]
    for place, (layer, way) in enumerate(zip(layers, ways, strict=True)):
        operators = tuple(_operators(layer, way, side, joint, first=place == 0))
        if LAYOUTS[way] != before:
            # the output of the layer before is the input of this one
            change = _change(layers[place - 1].sample_output_bytes, before, LAYOUTS[way], side)
            operators = (change, *operators)
        share = 1 if way == "model" else side.ranks
        made.append(replace(layer, operators=operators, sample_output_bytes=layer.sample_output_bytes / share))
        before = LAYOUTS[way]
    return made


def _operators(layer: OperatorLayer, way: Way, side: Side, joint: str, *, first: bool) -> Iterator[Operator]:
    for operator in layer.operators:
        if way == "batch":
            yield ShardedOperator(OfSamples(operator, side.ranks), _jointly(operator.tensors, joint))
        elif way == "model":
            yield _cut_outputs(layer, operator, side, first=first)
        else:
            yield _band(layer, operator, side, joint)


def _jointly(tensors: Sequence[ParameterTensor], joint: str) -> tuple[ParameterTensor, ...]:
    return tuple(replace(tensor, reduced_over=(joint,)) for tensor in tensors)


def _band(layer: OperatorLayer, operator: Operator, side: Side, joint: str) -> Operator:
    tensors = _jointly(operator.tensors, joint)
    if isinstance(operator, Convolution):
        _check_rows(layer, operator, side)
        source, target = (_cut(image, side.ranks) for image in (operator.source, operator.target))
        return Halo(replace(operator, source=source, target=target), side.over, tensors)
    if isinstance(operator, Elementwise):
        return replace(operator, elements=ceil(operator.elements / side.ranks), parameters=tensors)
    raise ScenarioError(f"layer {layer.name} has no images to cut; take model or batch for it")


def _check_rows(layer: OperatorLayer, convolution: Convolution, side: Side) -> None:
    rows = convolution.source.height // side.ranks
    if rows < max(1, sides(convolution.window)[0] // 2):
        raise ScenarioError(
            f"{layer.name}: {side.ranks} bands of an image of {convolution.source.height} rows have {rows}, fewer than "
            f"the halo of a window of {convolution.window}; take fewer ranks, or model or batch for this layer"
        )


def _cut(image: Image, parts: int) -> Image:
    return replace(image, height=ceil(image.height / parts))


def _cut_outputs(layer: OperatorLayer, operator: Operator, side: Side, *, first: bool) -> Operator:
    """A product with one part of the outputs; all others are computed by every rank."""
    if isinstance(operator, Linear):
        outputs, given, taken = operator.outputs, operator.rows * operator.outputs, operator.rows * operator.inputs
    elif isinstance(operator, Convolution):
        outputs, given, taken = operator.target.channels, operator.target.elements, operator.source.elements
        first = first or operator.first
    else:
        return operator
    if outputs < side.ranks:
        raise ScenarioError(f"{layer.name} has {outputs} outputs, too few for {side.ranks} ranks; take batch for it")
    share = ceil(outputs / side.ranks)
    width = BYTES[operator.precision]
    gathered = Exchange("all_gather", float(given * width), side.over)
    summed = Exchange("all_reduce", float(taken * width), side.over, divisible=True)
    own = (
        replace(operator, outputs=share)
        if isinstance(operator, Linear)
        else replace(operator, target=replace(operator.target, channels=share))
    )
    after = (("F", gathered), *(() if first else (("I", summed),)))
    return ShardedOperator(own, own.tensors, after=after)


def _change(nbytes: float, before: Layout, after: Layout, side: Side) -> Operator:
    """The change of layout of *nbytes* of activations a sample; each rank keeps its own part of a whole without it."""
    if "whole" not in (before, after):
        exchanges = tuple((phase, Exchange("all_to_all", nbytes / side.ranks, side.over)) for phase in "FI")
    else:
        exchanges = (("F" if after == "whole" else "I", Exchange("all_gather", nbytes, side.over)),)
    return ShardedOperator(Elementwise(0, 0.0, 0.0), (), before=exchanges)


def of_samples(operators: Sequence[Operator], grid: Grid | None) -> tuple[Operator, ...]:
    """*operators*, which are of one rank but for the samples, over the samples that it has on *grid*."""
    if grid is None:
        return tuple(operators)
    # ranks that exchange something for an operator divide its products
    alone = (not isinstance(operator, ShardedOperator) for operator in operators)
    return tuple(
        OfSamples(operator, grid.sample_shares, grid.copies if one else 1)
        for operator, one in zip(operators, alone, strict=True)
    )


@dataclass(frozen=True)
class OfSamples(Operator):
    """*whole* over one of *shares* parts of the samples. *copies*: the ranks that compute the same."""

    whole: Operator
    shares: int
    copies: int = 1

    @property
    def operation(self) -> Operation:
        """As the whole."""
        return self.whole.operation

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As the whole."""
        return self.whole.tensors

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.forward(self._own(samples)))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.backward_input(self._own(samples)))

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.backward_weights(self._own(samples)))

    def kept_bytes(self, samples: int) -> float:
        """As the whole."""
        return self.whole.kept_bytes(self._own(samples))

    def transient_bytes(self, phase: str, samples: int) -> float:
        """As the whole."""
        return self.whole.transient_bytes(phase, self._own(samples))

    def weight_bytes(self, samples: int) -> float:
        """As the whole."""
        return self.whole.weight_bytes(self._own(samples))

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.recomputable_forward(self._own(samples)))

    def recomputable_bytes(self, samples: int) -> float:
        """As the whole."""
        return self.whole.recomputable_bytes(self._own(samples))

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """As the whole."""
        made = self.whole.segments(phase, self._own(samples))
        return tuple(replace(segment, kernels=self._counted(segment.kernels)) for segment in made)

    def _own(self, samples: int) -> int:
        if samples % self.shares:
            raise ScenarioError(f"{self.shares} ranks cannot share a micro-batch of {samples} samples")
        return samples // self.shares

    def _counted(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        if self.copies == 1:
            return kernels
        return tuple(replace(kernel, copies=self.copies) if kernel.flops else kernel for kernel in kernels)
