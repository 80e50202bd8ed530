"""Products in 8 or 4 bits: recipes that scale and cast their operands, and what the casts read and write.

A linear layer has three products: y = x W^T, dx = dy W and dW = dy^T x. Each operand is scaled so that its largest
magnitude (amax) fits the format, and cast from 16 bits. Every operand but W in y, and so on, is read in two
directions: x along the features in y, along the rows in dW. Micikevicius et al. 2022, "FP8 Formats for Deep Learning",
arXiv:2209.05433.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simulator.kernel import OPERAND_BYTES, Kernel, memory_bound

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

RECIPES: Mapping[str, Recipe] = {
    "delayed": Recipe("fp8"),
    "tensorwise": Recipe("fp8", own_amax=True),
    "rowwise": Recipe("fp8", own_amax=True, by_direction=True),
    BLOCKWISE: Recipe("fp8", scale_bytes=4.0, block=128, by_direction=True),
    "mxfp8": Recipe("mxfp8", scale_bytes=1.0, block=32, by_direction=True),
    "nvfp4": Recipe("nvfp4", own_amax=True, scale_bytes=1.0, block=16, by_direction=True),
}
"""By name. ``delayed``: one scale for a tensor, from the amax of steps before; the cast finds the next one in passing
(Transformer Engine, ``DelayedScaling``). ``tensorwise``: from its own amax (``Float8CurrentScaling``; torchao).
``rowwise``: a scale for each row along the direction of reading, from its amax (torchao's recipe of that name); the
scales, one for some thousand elements, are not counted. ``blockwise``: an fp32 scale for each 1 x 128 activations and
128 x 128 weights, whose scales are not counted (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2). ``mxfp8``: a scale
of 8 bits for each 32 elements. ``nvfp4``: one for each 16, below one of the tensor (NVIDIA 2025, arXiv:2509.25149,
section 2); its Hadamard transform is left out."""


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
        return tuple(replace(one, nbytes=one.nbytes * share, launches=round(share * tensors)) for one in casts)

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
