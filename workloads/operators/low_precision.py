"""Products in 8 or 4 bits: recipes that scale and cast their operands, and what the casts read and write.

A linear layer has three products: y = x W^T, dx = dy W and dW = dy^T x. Each operand is scaled so that its largest
magnitude (amax) fits the format, and cast from 16 bits. Every operand but W in y, and so on, is read in two
directions: x along the features in y, along the rows in dW. Micikevicius et al. 2022, "FP8 Formats for Deep Learning",
arXiv:2209.05433.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from clustersim.simulator.hardware.kernel import BYTES, OPERAND_BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.records import changed
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import ParameterTensor

WIDE = 2
"""Bytes of an element before it is cast."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How operands are scaled.

    *product*: the precision of the products. *own_amax*: the amax of the tensor itself, which a pass over it finds
    before the cast. *scale_bytes* for each *block* of elements (0: one scale for a tensor). *by_direction*: blocks lie
    along the direction of reading, so that both directions are cast from 16 bits.
    """

    product: str
    own_amax: bool = False
    scale_bytes: float = 0.0
    block: int = 1
    by_direction: bool = False

    @property
    def element_bytes(self) -> float:
        """Bytes of an element with its share of the scale."""
        return OPERAND_BYTES[self.product] + self.scale_bytes / self.block


BLOCKWISE = "blockwise"
CHANNELWISE = "channelwise"

RECIPES: Mapping[str, Recipe] = {
    "delayed": Recipe("fp8"),
    "tensorwise": Recipe("fp8", own_amax=True),
    "rowwise": Recipe("fp8", own_amax=True, by_direction=True),
    BLOCKWISE: Recipe("fp8", scale_bytes=4.0, block=128, by_direction=True),
    "mxfp8": Recipe("mxfp8", scale_bytes=1.0, block=32, by_direction=True),
    "nvfp4": Recipe("nvfp4", own_amax=True, scale_bytes=1.0, block=16, by_direction=True),
    CHANNELWISE: Recipe("int8", own_amax=True, by_direction=True),
}
"""By name. ``delayed``: one scale for a tensor, from the amax of steps before; the cast finds the next one in passing
(Transformer Engine, ``DelayedScaling``). ``tensorwise``: from its own amax (``Float8CurrentScaling``; torchao).
``rowwise``: a scale for each row along the direction of reading, from its amax (torchao's recipe of that name); the
scales, one for some thousand elements, are not counted. ``blockwise``: an fp32 scale for each 1 x 128 activations and
128 x 128 weights, whose scales are not counted (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2). ``mxfp8``: a scale
of 8 bits for each 32 elements. ``nvfp4``: one for each 16, below one of the tensor (NVIDIA 2025, arXiv:2509.25149,
section 2); its Hadamard transform is left out. ``channelwise``: as rowwise, but integers, in all three products
(google/aqt, aqt/jax/v2/config.py, ``config_v3``, as MaxText's ``quantization: int8`` sets it; torchao,
prototype/quantized_training/int8_mixed_precision.py)."""

DEFAULT_RECIPES: Mapping[str, str] = {"fp8": "tensorwise", "fp4": "nvfp4", "int8": CHANNELWISE}
"""By number format of the products."""


@dataclass(frozen=True, slots=True)
class LowPrecision:
    """The products of linear layers in few bits, by a *recipe* of `RECIPES`.

    *transposes*: products take operands in one layout only, as on Hopper, so that every tensor is also written
    transposed. *keeps_casts*: what the forward pass has cast is kept for the backward pass, as by Transformer Engine;
    else the 16 bits are kept and cast again, as by torchao. *stored*: parameters are gathered in few bits, and with
    *keeps_casts* also stored so, without a copy in 16 bits. *weight_casts*: how often a pass over a micro-batch casts
    the weights, the mean over a step.
    """

    recipe: str = "tensorwise"
    transposes: bool = True
    stored: bool = False
    keeps_casts: bool = True
    weight_casts: float = 1.0

    @property
    def scaling(self) -> Recipe:
        """That of the name."""
        return RECIPES[self.recipe]

    @property
    def element_bytes(self) -> float:
        """Bytes of an element with its share of the scale."""
        return self.scaling.element_bytes

    @property
    def layouts(self) -> int:
        """Copies of each tensor that products need."""
        return 2 if self.transposes or self.scaling.by_direction else 1

    def casts(self, elements: float, shards: int = 1, *, products: int = 2) -> tuple[Kernel, ...]:
        """The kernels that cast *elements* of a tensor; each rank casts one of *shards*, which are then gathered.

        *products*: how many will read what is cast, each in one direction. The transposed copy is written by the same
        kernel, but after a gather by one of its own.
        """
        recipe, own, layouts = self.scaling, elements / shards, min(self.layouts, products)
        written = recipe.element_bytes * (layouts if shards == 1 or recipe.by_direction else 1)
        kernels = [memory_bound(own * WIDE)] if recipe.own_amax else []
        kernels.append(memory_bound(own * (WIDE + written)))
        if shards > 1 and layouts > 1 and not recipe.by_direction:
            kernels += self.transposed(elements)
        return tuple(kernels)

    def transposed(self, elements: float) -> tuple[Kernel, ...]:
        """The kernel that writes *elements* in few bits a second time, transposed; none if no product needs it."""
        if self.layouts == 1 or self.scaling.by_direction:
            return ()
        return (memory_bound(2 * elements * self.element_bytes),)

    @property
    def products(self) -> int:
        """How many products read what is cast: the one of the pass, or those of both passes if it is kept."""
        return 2 if self.keeps_casts else 1

    def weights_cast(self, elements: float, tensors: int = 1) -> tuple[Kernel, ...]:
        """The casts of *elements* of weights in a forward pass, the mean over the passes of a step.

        Each of *tensors* has a launch. Weights that are stored or gathered in few bits have been cast by shards. If
        casts are kept they are transposed.
        """
        if self.stored:
            casts = self.transposed(elements) if self.keeps_casts else ()
        else:
            casts = self.casts(elements, products=self.products)
        share = self.weight_casts
        return tuple(changed(one, nbytes=one.nbytes * share, launches=round(share * tensors)) for one in casts)

    def weights_cast_again(self, elements: float) -> tuple[Kernel, ...]:
        """Their casts in a backward pass; none if the first ones are kept."""
        if self.keeps_casts:
            return ()
        return self.transposed(elements) if self.stored else self.casts(elements, products=1)

    @property
    def kept_bytes(self) -> float:
        """Bytes of an element that waits for the backward pass: as it was cast, or in 16 bits."""
        return self.element_bytes if self.keeps_casts else WIDE

    def gathered_bytes(self, *, both: bool) -> float:
        """Bytes of an element of an activation that ranks gather after the cast; *both* directions are read."""
        return self.scaling.element_bytes * (2 if both and self.scaling.by_direction else 1)

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight that a rank holds in few bits through a step, beside those in 16 bits or in place of them.

        Without `keeps_casts` they are cast where they are used, and not held.
        """
        if not self.keeps_casts:
            return 0.0
        held = self.layouts * self.scaling.element_bytes
        return held - WIDE if self.stored else held


TENSORWISE = LowPrecision()
"""The default."""

CASTS = Operation("cast to few bits", "elementwise", "linear")


@dataclass(frozen=True)
class ScaledLinear(Linear):
    """A `Linear` by the recipe *low*; its input, its output and its weights have 16 bits.

    *input_shards*, *gradient_shards*: each rank casts one of so many shards of the input, or of the gradient of the
    output, and the ranks gather them (sequence parallelism).
    """

    low: LowPrecision = TENSORWISE
    input_shards: int = 1
    gradient_shards: int = 1

    @property
    def operation(self) -> Operation:
        """Beside the products there are the casts of their operands."""
        return CASTS

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weights have copies in few bits, biases have not."""
        gathered = self.low.element_bytes if self.low.stored else None
        every = 2 if self.bias else 1
        return tuple(
            one if place % every else changed(one, copy_bytes=self.low.weight_bytes, gathered_bytes=gathered)
            for place, one in enumerate(super().tensors)
        )

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Casts of the weight and of the input, and the product."""
        product = self._product(samples * self.rows, self.outputs, self.inputs)
        return (*self.low.weights_cast(self.inputs * self.outputs), *self._input_casts(samples), product)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The cast of dy, which also sums the bias gradient, and dx = dy W."""
        again = self.low.weights_cast_again(self.inputs * self.outputs)
        readers = 1 if self.frozen else 2
        casts = self.low.casts(samples * self.rows * self.outputs, self.gradient_shards, products=readers)
        return (*again, *casts, self._product(samples * self.rows, self.inputs, self.outputs))

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """dW = dy^T x, with a further cast of x unless the first one is kept."""
        if self.frozen:
            return ()
        again = () if self.low.keeps_casts else self._input_casts(samples)
        return (*again, changed(self._product(self.outputs, self.inputs, samples * self.rows), of_weights=True))

    def kept_bytes(self, samples: int) -> float:
        """Its input, as it was cast or in 16 bits."""
        width = self.low.element_bytes if self.low.keeps_casts else BYTES[self.precision]
        kept = self.keeps_input and not self.frozen
        return samples * self.rows * self.inputs * width / self.kept_share if kept else 0.0

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output, which is cast."""
        if self.frozen:
            return 0.0
        return self.kept_bytes(samples) + samples * self.rows * self.outputs * self.low.element_bytes

    @property
    def gathered_input_bytes(self) -> float:
        """Ranks gather what they have cast."""
        return self.low.gathered_bytes(both=False)

    @property
    def gathered_gradient_bytes(self) -> float:
        """Ranks gather what they have cast, for dx and for dW."""
        return self.low.gathered_bytes(both=True)

    def _product(self, m: int, n: int, k: int) -> Kernel:
        """The rows of both operands are *k* long, the only layout that all GPUs with such products take."""
        return matmul(m, n, k, precision=self.low.scaling.product, rows=(k, k), result=self.precision)

    def _input_casts(self, samples: int) -> tuple[Kernel, ...]:
        return self.low.casts(
            samples * self.rows * self.inputs, self.input_shards, products=1 if self.frozen else self.low.products
        )


def scaled(linear: Linear, low: LowPrecision | None, *, input_shards: int = 1, gradient_shards: int = 1) -> Linear:
    """*linear* by the recipe *low*; unchanged if there is none. Shards as `ScaledLinear` has them."""
    if low is None:
        return linear
    own = {one.name: getattr(linear, one.name) for one in fields(linear)}
    return ScaledLinear(**own, low=low, input_shards=input_shards, gradient_shards=gradient_shards)
