"""Frozen weights in 4 bits, which are converted to 16 bits before each product.

Dettmers et al. 2023, "QLoRA" (arXiv:2305.14314, section 3); kernels as bitsandbytes has them (autograd/_functions.py,
``MatMul4Bit``: forward and backward pass each make a 16-bit copy of the weight).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from simulator.kernel import BYTES, Kernel, memory_bound
from simulator.operation import Operation
from workloads.operators.linear import Linear
from workloads.operators.parameter import ParameterTensor

FORMATS = ("nf4", "fp4")
"""Formats of 4 bits."""

ELEMENT = 0.5
"""Bytes of an element without its scale."""

BLOCK = 64
"""Elements that share one scale (arXiv:2305.14314, section 3)."""

SCALES = 256
"""Scales of 8 bits that share one fp32 scale, with double quantisation (same section)."""

FP32 = 4.0

CONVERSION = Operation("conversion from 4 bits", "elementwise", "linear")


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Weights in 4 bits; with *double* the scales of blocks are quantised too, else they are fp32."""

    double: bool = True

    @property
    def scale_bytes(self) -> float:
        """Bytes of scales for each element.

        >>> round(8 * Quantisation().scale_bytes, 3), 8 * Quantisation(double=False).scale_bytes
        (0.127, 0.5)
        """
        return (1.0 + FP32 / SCALES) / BLOCK if self.double else FP32 / BLOCK

    @property
    def element_bytes(self) -> float:
        """Bytes of an element with its share of the scales."""
        return ELEMENT + self.scale_bytes

    def converted(self, elements: int, precision: str) -> tuple[Kernel, ...]:
        """The kernels that write *elements* in *precision*: scales in fp32 first, if these are quantised too."""
        scales = elements / BLOCK
        first = scales * FP32 + elements * self.scale_bytes
        second = elements * (ELEMENT + BYTES[precision]) + scales * FP32
        unpacked = memory_bound(second, precision=precision, operation=CONVERSION)
        return (memory_bound(first, operation=CONVERSION), unpacked) if self.double else (unpacked,)


@dataclass(frozen=True)
class QuantisedLinear(Linear):
    """A frozen `Linear` with weights in 4 bits; a copy of the weight in *precision* exists during a product only."""

    frozen: bool = True
    quantisation: Quantisation = Quantisation()

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weights take fewer bytes than the precision of the model has, where they are held and gathered."""
        each = self.quantisation.element_bytes
        less, every = each - BYTES[self.precision], 2 if self.bias else 1
        return tuple(
            one if place % every else replace(one, copy_bytes=less, gathered_bytes=each)
            for place, one in enumerate(super().tensors)
        )

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The copy of the weight, and the product."""
        return (*self._copy, *super().forward(samples))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The copy once more, and the product."""
        return (*self._copy, *super().backward_input(samples))

    def transient_bytes(self, phase: str, samples: int) -> float:
        """The copy."""
        return float(self.inputs * self.outputs * BYTES[self.precision])

    @property
    def _copy(self) -> tuple[Kernel, ...]:
        return self.quantisation.converted(self.inputs * self.outputs, self.precision)


def quantised(linear: Linear, quantisation: Quantisation) -> QuantisedLinear:
    """*linear*, frozen, with its weight in 4 bits."""
    own = {one.name: getattr(linear, one.name) for one in fields(linear)}
    return QuantisedLinear(**{**own, "frozen": True}, quantisation=quantisation)
