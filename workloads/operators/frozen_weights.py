"""Frozen weights in 4 bits, or wider than products take them: held by a library, and converted before each product.

Dettmers et al. 2023, "QLoRA" (arXiv:2305.14314, section 3); kernels as bitsandbytes has them (autograd/_functions.py,
``MatMul4Bit``: forward and backward pass each make a 16-bit copy of the weight). Or they are GPTQ's (Frantar et al.
2022, arXiv:2210.17323), trained by AutoGPTQ, which makes the copy by torch's own operators. On an H200 bitsandbytes'
kernel converts 0.9e12 elements a second, half of what its memory would give (published/h200_dequantisation.csv).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Protocol

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import ParameterTensor

ELEMENT = 0.5
"""Bytes of an element without its scale."""

BLOCK = 64
"""Elements that share one scale (arXiv:2305.14314, section 3)."""

SCALES = 256
"""Scales of 8 bits that share one fp32 scale, with double quantisation (same section)."""

FP32 = 4.0

CONVERSION = Operation("conversion from 4 bits", "elementwise", "linear")
CAST = Operation("cast", "elementwise", "linear")


GROUP = 128
"""Elements that share one scale and one zero of GPTQ (arXiv:2210.17323, table 5, and AutoGPTQ's group_size)."""

UNPACKED = (ELEMENT + 4, 4 + 1, 1 + 1, 1 + 1, 1 + 2)
"""Bytes of an element that AutoGPTQ's operators move before each product: a shift that writes int32, a cast to int8, a
mask, the zero taken off, the product with the scale (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, ``forward``, of
more than 128 rows without the order of activations). Scales and zeros stay in the cache."""

ZEROS = 4
"""Kernels that unpack the zeros, which are few: a shift, a cast, a sum, a mask."""


class Packed(Protocol):
    """Weights of 4 bits as a library holds and converts them."""

    @property
    def element_bytes(self) -> float:
        """Bytes of an element with its share of the scales."""

    @property
    def keeps_copy(self) -> bool:
        """True if the copy that the forward pass made waits for the backward pass; else that makes its own."""

    @property
    def keeps_inputs(self) -> bool:
        """True if a product keeps its input."""

    def converted(self, elements: int, precision: str) -> tuple[Kernel, ...]:
        """The kernels that write *elements* in *precision*."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """Weights in 4 bits by GPTQ, each *group* of elements with a scale of 16 bits and a zero of 4.

    >>> 8 * Gptq().element_bytes
    4.15625
    """

    group: int = GROUP

    @property
    def element_bytes(self) -> float:
        """Bytes of an element with its share of scale and zero."""
        return ELEMENT + (BYTES["fp16"] + ELEMENT) / self.group

    @property
    def keeps_copy(self) -> bool:
        """True: the copy is an input of torch.matmul, whose gradient needs it."""
        return True

    @property
    def keeps_inputs(self) -> bool:
        """False."""
        return False

    def converted(self, elements: int, precision: str) -> tuple[Kernel, ...]:
        """Zeros first, then the passes of `UNPACKED`."""
        zeros = sum(UNPACKED[:4]) * elements / self.group
        return (
            memory_bound(zeros, launches=ZEROS, operation=CONVERSION),
            memory_bound(sum(UNPACKED) * elements, precision=precision, launches=len(UNPACKED), operation=CONVERSION),
        )


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Weights in 4 bits by bitsandbytes; with *double* the scales of blocks are quantised too, else they are fp32.

    *keeps_inputs*: a product saves its input for the backward pass, which does not read it. It did so until version
    0.43.1 (autograd/_functions.py, ``MatMul4Bit``; pull request 1270, July 2024).
    """

    double: bool = True
    keeps_inputs: bool = False

    @property
    def keeps_copy(self) -> bool:
        """False."""
        return False

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
        """The kernels that write *elements* in *precision*: scales in fp32 first, if these are quantised too.

        These are converted, and their mean is added (bitsandbytes, functional.py, ``dequantize_4bit``).
        """
        scales = elements / BLOCK
        first = scales * FP32 + elements * self.scale_bytes + 2 * scales * FP32
        second = elements * (ELEMENT + BYTES[precision]) + scales * FP32
        unpacked = memory_bound(second, precision=precision, operation=CONVERSION)
        return (memory_bound(first, launches=2, operation=CONVERSION), unpacked) if self.double else (unpacked,)


@dataclass(frozen=True, slots=True)
class Upcast:
    """Frozen weights that are held in fp32, and that autocast casts in each product: only those trained are cached.

    ATen/autocast_mode.cpp, ``cached_cast``; PEFT holds a head so beside weights in 4 bits (`Shape.prepared`).
    """

    @property
    def element_bytes(self) -> float:
        """Those of fp32."""
        return FP32

    @property
    def keeps_copy(self) -> bool:
        """True: the copy is an input of the product, whose gradient needs it."""
        return True

    @property
    def keeps_inputs(self) -> bool:
        """False."""
        return False

    def converted(self, elements: int, precision: str) -> tuple[Kernel, ...]:
        """A cast."""
        return (memory_bound(elements * (FP32 + BYTES[precision]), precision=precision, operation=CAST),)


@dataclass(frozen=True)
class QuantisedLinear(Linear):
    """A frozen `Linear` with weights in 4 bits, of which each product reads a copy in *precision*.

    The copy exists during the product only, or waits for the backward pass (`Packed.keeps_copy`). *wide*: its input
    and output are in fp32, and cast before and after the product (bitsandbytes, nn/modules.py, ``Linear4bit.forward``).
    """

    frozen: bool = True
    quantisation: Packed = Quantisation()
    wide: bool = False

    @property
    def stream_precision(self) -> str:
        """That of its input and output."""
        return "fp32" if self.wide else self.precision

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
        own = (*self._copy, *super().forward(samples))
        return (*self._casts(samples, self.inputs), *own, *self._casts(samples, self.outputs))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The copy once more unless it is kept, and the product."""
        again = () if self.quantisation.keeps_copy else self._copy
        own = (*again, *super().backward_input(samples))
        return (*self._casts(samples, self.outputs), *own, *self._casts(samples, self.inputs))

    def _casts(self, samples: int, features: int) -> tuple[Kernel, ...]:
        """A cast of *features* a row from or to fp32, if they are."""
        nbytes = samples * self.rows * features * (FP32 + BYTES[self.precision])
        return (memory_bound(nbytes, precision=self.precision, operation=CAST),) * self.wide

    def kept_beside_input(self, samples: int) -> float:
        """The copy of the weight, if it is kept, and that of a wide input, which each product casts for itself."""
        copy = self._copy_bytes if self.quantisation.keeps_copy else 0.0
        return copy + (self._input_bytes(samples) if self.wide and self.quantisation.keeps_inputs else 0.0)

    def kept_bytes(self, samples: int) -> float:
        """Its input, if the library or another operator keeps it, and `kept_beside_input`: no gradient needs it."""
        keeps = self.input_held or (self.quantisation.keeps_inputs and not self.wide)
        return (self._input_bytes(samples) if keeps else 0.0) + self.kept_beside_input(samples)

    def _input_bytes(self, samples: int) -> float:
        return samples * self.rows * self.inputs * BYTES[self.precision] / self.kept_share

    @property
    def keeps_inputs(self) -> bool:
        """False: what it may keep is the copy."""
        return False

    def transient_bytes(self, phase: str, samples: int) -> float:
        """The copy."""
        return 0.0 if self.quantisation.keeps_copy else self._copy_bytes

    @property
    def _copy_bytes(self) -> float:
        return float(self.inputs * self.outputs * BYTES[self.precision])

    @property
    def _copy(self) -> tuple[Kernel, ...]:
        return self.quantisation.converted(self.inputs * self.outputs, self.precision)


def quantised(linear: Linear, quantisation: Packed, *, wide: bool = False) -> QuantisedLinear:
    """*linear*, frozen, with its weight as *quantisation* holds it."""
    own = {one.name: getattr(linear, one.name) for one in fields(linear)}
    return QuantisedLinear(**{**own, "frozen": True}, quantisation=quantisation, wide=wide)
