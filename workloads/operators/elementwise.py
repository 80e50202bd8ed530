"""Operators bound by memory: activations, dropout, residual sums. Their cost is the bytes that they read and write.

A fused operator reads its operands once and writes its result once. Otherwise torch's own operators run one by one.
*width* is the bytes of an element; a dropout mask takes one byte. Kept bytes follow Korthikanti et al. 2022
(arXiv:2205.05198, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel, memory_bound
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor


@dataclass(frozen=True)
class Elementwise(Operator):
    """An operator over *elements*: bytes read and written for each of them in the *forwards* and *backwards* pass.

    *weights*: bytes for the gradients of its *parameters*, if it has any; *kept*: bytes kept for the backward pass;
    *transient*: bytes held during the forward and the backward pass only. *launches*: the number of kernels in each.
    """

    elements: int
    forwards: float
    backwards: float
    weights: float = 0.0
    kept: float = 0.0
    transient: tuple[float, float] = (0.0, 0.0)
    parameters: tuple[ParameterTensor, ...] = ()
    launches: tuple[int, int] = (1, 1)
    precision: str = "fp32"

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Its forward traffic."""
        return self._kernels(samples, self.forwards, self.launches[0])

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """Its backward traffic, and that of its weight gradients."""
        return (*self._kernels(samples, self.backwards, self.launches[1]), *self._kernels(samples, self.weights, 1))

    def kept_bytes(self, samples: int) -> float:
        """*kept* for each element."""
        return samples * self.elements * self.kept

    def transient_bytes(self, phase: str, samples: int) -> float:
        """*transient* for each element."""
        return samples * self.elements * self.transient[phase != "F"]

    def _kernels(self, samples: int, each: float, launches: int) -> tuple[Kernel, ...]:
        nbytes = samples * self.elements * each
        return (memory_bound(nbytes, precision=self.precision, launches=launches),) if nbytes else ()


def gelu(elements: int, precision: str, *, written_out: bool = False) -> Elementwise:
    """One kernel that keeps its input: torch.nn.functional.gelu, or fused with a bias (Megatron-LM, bias_gelu_impl).

    *written_out*: 0.5 x (1 + tanh(c (x + 0.044715 x^3))) in eager torch (Hugging Face, NewGELUActivation). Each of
    eight operators reads its operands and writes its result; autograd keeps x, the tanh, 0.5 x and 1 + tanh. Eleven
    kernels backward: two for each product of tensors, three for the power, two that add what meets at x.
    """
    width = BYTES[precision]
    if written_out:
        return Elementwise(elements, 18 * width, 28 * width, kept=4 * width, launches=(8, 11), precision=precision)
    return Elementwise(elements, 2 * width, 3 * width, kept=width, precision=precision)


def tanh(elements: int, precision: str) -> Elementwise:
    """One kernel; its backward reads the output again. Also ReLU."""
    return gelu(elements, precision)


def swiglu(elements: int, precision: str, *, fused: bool = True, separate: bool = True) -> Elementwise:
    """silu(gate) * up for *elements* outputs. Unfused: two kernels, and silu(gate) is kept too.

    If gate and up are not *separate* tensors but halves of one, the backward pass joins their gradients.
    """
    width = BYTES[precision]
    if fused:
        return Elementwise(elements, 3 * width, 5 * width, kept=2 * width, precision=precision)
    passes, launches = (9, 3) if separate else (13, 4)
    return Elementwise(elements, 5 * width, passes * width, kept=3 * width, launches=(2, launches), precision=precision)


def dropout(elements: int, precision: str) -> Elementwise:
    """Keeps its mask."""
    traffic = 2 * BYTES[precision] + 1
    return Elementwise(elements, traffic, traffic, kept=1, precision=precision)


def residual(elements: int, precision: str, stream: str, *, drop: bool, fused: bool = True) -> Elementwise:
    """x + dropout(y), or x + y. Its backward adds the two gradients that meet at x.

    *stream*: the precision of x and of the sum; if wider than that of y, the gradient of y is cast.
    """
    width, wide = BYTES[precision], BYTES[stream]
    cast = wide + width if wide > width else 0
    launched = 1 if cast and not fused else 0
    forward, backward = 2 * wide + width, 3 * wide + cast
    if not drop:
        return Elementwise(elements, forward, backward, launches=(1, 1 + launched), precision=precision)
    forward += 1 if fused else 2 * width + 1
    backward += 2 * width + 1
    launches = (1 if fused else 2, 2 + launched)
    return Elementwise(elements, forward, backward, kept=1, launches=launches, precision=precision)


def cast(elements: int, precision: str, stream: str, copies: int) -> Elementwise:
    """*copies* of the input of products, from *stream* to *precision*; the products keep one, this the others.

    Under torch's autocast each product casts its input (ATen/autocast_mode.cpp: ``cached_cast`` keeps only weights).
    Backward each gradient is cast to *stream*, and they are added up.
    """
    width, wide = BYTES[precision], BYTES[stream]
    sums = 3.0 * wide * (copies - 1)
    return Elementwise(
        elements,
        copies * (wide + width),
        copies * (wide + width) + sums,
        kept=(copies - 1) * width,
        launches=(copies, 2 * copies - 1),
        precision=precision,
    )


def rotary(elements: int, precision: str, *, fused: bool = True) -> Elementwise:
    """Rotary embedding of queries and keys, in place of position vectors (Su et al. 2021, arXiv:2104.09864).

    Unfused as Hugging Face writes it, queries and keys apart: negate a half, concatenate, two products, sum. Backward
    there are two products, the gradients of two halves padded with zeros, and sums. Keeps nothing.
    """
    width = BYTES[precision]
    forwards, backwards, launches = (2, 2, (1, 1)) if fused else (10, 14, (10, 14))
    return Elementwise(elements, forwards * width, backwards * width, launches=launches, precision=precision)
