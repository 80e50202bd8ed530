"""What an activation function keeps: its input and its output by default, the output as the input of a product.

*bits*: the input is not kept, but a few bits of each element, the interval of a piecewise constant derivative (Novikov
et al. 2022, "Few-Bit Backward", arXiv:2202.00441, section 3: GELU and others with 1 to 4 bits; ReLU is exact with 1).
*recompute*: the output is not kept; it is computed again from the input before the product's weight gradient
(Megatron-LM, ``--recompute-modules moe_act``; Korthikanti et al. 2022, arXiv:2205.05198, do so for attention).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel
from clustersim.workloads.operators.elementwise import Elementwise

BYTE = 8
"""Bits of a byte."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The rule: *bits* of each element of the input, 0: all of it; with *recompute* the output is computed again.

    *experts_fp8*: experts keep the inputs of their products and activation functions in 8 bits (DeepSeek-AI 2024,
    arXiv:2412.19437, section 3.3.3).
    """

    bits: int = 0
    recompute: bool = False
    experts_fp8: bool = False


EVERYTHING = Saved()
"""Input and output are kept."""


@dataclass(frozen=True)
class RecomputedActivation(Elementwise):
    """An activation function that runs again for the weight gradient of the product behind it; that keeps no input.

    *output*: bytes of an element of its output.
    """

    output: int = 0

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """Its forward pass once more."""
        return self.forward(samples)

    def transient_bytes(self, phase: str, samples: int) -> float:
        """Backward the output, too."""
        again = 0.0 if phase == "F" else float(samples * self.elements * self.output)
        return super().transient_bytes(phase, samples) + again

    def weight_bytes(self, samples: int) -> float:
        """What it keeps, since the output is made from it."""
        return self.kept_bytes(samples)


def saving(activation: Elementwise, rule: Saved, precision: str) -> Elementwise:
    """*activation*, one kernel with one input unless the rule keeps that, as *rule* has it."""
    made = _few_bits(activation, rule.bits, precision) if rule.bits else activation
    if not rule.recompute:
        return made
    own = {one.name: getattr(made, one.name) for one in fields(Elementwise)}
    return RecomputedActivation(**own, output=BYTES[precision])


def _few_bits(activation: Elementwise, bits: int, precision: str) -> Elementwise:
    """Forward the kernel reads x and writes y and the bits; backward it reads dy and the bits, and writes dx."""
    traffic, kept = 2 * BYTES[precision] + bits / BYTE, bits / BYTE
    one_kernel = replace(activation, forwards=traffic, backwards=traffic, launches=(1, 1), parts=())
    return replace(one_kernel, kept=kept, transient=(0.0, 0.0))
