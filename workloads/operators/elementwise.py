"""Operators bound by memory: activations and what they keep, norms, dropout, residual sums. Their cost is the bytes
they move.

A fused operator reads its operands once and writes its result once. Otherwise torch's own operators run one by one.
*width* is the bytes of an element; a dropout mask takes one byte. Kept bytes follow Korthikanti et al. 2022
(arXiv:2205.05198, section 4.1).

What an activation function keeps: its input and its output by default, the output as the input of a product.

*bits*: the input is not kept, but a few bits of each element, the interval of a piecewise constant derivative (Novikov
et al. 2022, "Few-Bit Backward", arXiv:2202.00441, section 3: GELU and others with 1 to 4 bits; ReLU is exact with 1).
*recompute*: the output is not kept; it is computed again from the input before the product's weight gradient
(Megatron-LM, ``--recompute-modules moe_act``; Korthikanti et al. 2022, arXiv:2205.05198, do so for attention).
"""

from __future__ import annotations

from dataclasses import fields, replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.operator import Operator, ParameterTensor, parameter_tensors

ELEMENTWISE = Operation("elementwise", "elementwise")


@dataclass(frozen=True)
class TorchOperator:
    """Kernels of one *operation* of a composition: bytes moved for each element, and the number of kernels, by pass.

    *accesses*: of each element, by pass, if they are of one at a time. Torch's kernels read and write several elements
    at once if operands and result have one type and lie alike in memory; a cast from fp32 to 16 bits does so too
    (ATen/native/cuda/CUDALoops.cuh, ``gpu_kernel_impl``: unrolled with ``LoadWithCast`` for a dynamic cast, and with an
    offset calculator unless all is contiguous; Copy.cu, ``bfloat16_copy_kernel_cuda``).
    """

    operation: Operation
    forwards: float = 0.0
    backwards: float = 0.0
    launches: tuple[int, int] = (1, 1)
    accesses: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Elementwise(Operator):
    """An operator over *elements*: bytes read and written for each of them in the *forwards* and *backwards* pass.

    *weights*: bytes for the gradients of its *parameters*, if it has any; *kept*: bytes kept for the backward pass;
    *transient*: bytes held during the forward and the backward pass only. *launches*: the number of kernels in each.
    *blocks*: as a `Kernel` has them. *parts*: the operations of a composition, which share these bytes and launches;
    none: there is one *operation*.
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
    operation: Operation = ELEMENTWISE
    blocks: int = 0
    parts: tuple[TorchOperator, ...] = ()

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Its forward traffic."""
        return self._pass(samples, 0)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """Its backward traffic, and that of its weight gradients."""
        return (*self._pass(samples, 1), *self._kernels(samples, self.weights, 1, 0.0, self.operation))

    def kept_bytes(self, samples: int) -> float:
        """*kept* for each element."""
        return samples * self.elements * self.kept

    def transient_bytes(self, phase: str, samples: int) -> float:
        """*transient* for each element."""
        return samples * self.elements * self.transient[phase != "F"]

    def _pass(self, samples: int, which: int) -> tuple[Kernel, ...]:
        """The kernels of the forward (0) or the backward (1) pass."""
        parts = self.parts or (TorchOperator(self.operation, self.forwards, self.backwards, self.launches),)
        return tuple(
            kernel
            for part in parts
            for kernel in self._kernels(
                samples,
                (part.forwards, part.backwards)[which],
                part.launches[which],
                part.accesses[which],
                part.operation,
            )
        )

    def _kernels(
        self, samples: int, each: float, launches: int, accesses: float, operation: Operation
    ) -> tuple[Kernel, ...]:
        elements = samples * self.elements
        if not elements * each:
            return ()
        kernel = memory_bound(
            elements * each,
            precision=self.precision,
            launches=launches,
            accesses=elements * accesses,
            blocks=self.blocks,
            operation=operation,
        )
        return (kernel,)


def composed(
    elements: int, precision: str, operation: Operation, parts: tuple[TorchOperator, ...], kept: float, width: int = 1
) -> Elementwise:
    """An operator made of *parts*, with bytes in units of *width*; *kept*: bytes that it keeps for each element."""
    wide = tuple(replace(one, forwards=one.forwards * width, backwards=one.backwards * width) for one in parts)
    return Elementwise(
        elements,
        sum(part.forwards for part in wide),
        sum(part.backwards for part in wide),
        kept=kept,
        launches=(sum(part.launches[0] for part in wide), sum(part.launches[1] for part in wide)),
        precision=precision,
        operation=operation,
        parts=wide,
    )


def elementary(name: str, operator: str) -> Operation:
    """The elementwise operation *name* of a composition, the *operator*."""
    return Operation(name, "elementwise", operator)


FP32 = 4
"""Bytes in which Hugging Face's RMSNorm computes, and a power under autocast, whatever the precision."""

GELU = Operation("GELU", "elementwise")
TANH = Operation("tanh", "elementwise")
SWIGLU = Operation("SwiGLU", "elementwise")
OUTPUT_GATE = Operation("output gate", "elementwise")
DROPOUT = Operation("dropout", "elementwise")
RESIDUAL = Operation("residual sum", "elementwise")
CAST = Operation("cast", "elementwise")
ROTARY = Operation("rotary embedding", "elementwise")


def gelu(elements: int, precision: str, *, written_out: bool = False, autocast: bool = False) -> Elementwise:
    """One kernel that keeps its input: torch.nn.functional.gelu, or fused with a bias (Megatron-LM, bias_gelu_impl).

    *written_out*: 0.5 x (1 + tanh(c (x + 0.044715 x^3))) in eager torch (Hugging Face, NewGELUActivation). Each of
    eight operators reads its operands and writes its result; autograd keeps x, the tanh, 0.5 x and 1 + tanh. Eleven
    kernels backward: two for each product of tensors, three for the power, two that add what meets at x.

    With torch's *autocast* the power is in fp32 (ATen/autocast_mode.h, AT_FORALL_FP32), and so is all that is made of
    it: all but 0.5 x. If x has 16 bits, it is cast for the power, whose cast input is kept in place of x; and so is the
    result for the product behind. Backward four gradients are cast.
    """
    width = BYTES[precision]
    if written_out:
        wide = max(width, FP32) if autocast else width
        both = width + wide
        # under autocast x + c x^3, 0.5 x (1 + tanh) and a gradient of that are of two types
        mixed = 3.0 if wide > width else 0.0
        multiply, add, cast = (elementary(name, GELU.name) for name in ("multiply", "add", "cast"))
        parts = (
            TorchOperator(elementary("power", GELU.name), 2 * wide, 7 * wide, (1, 3)),
            TorchOperator(multiply, 2 * width + 4 * wide, 2 * width + 7 * wide, (3, 4)),
            TorchOperator(multiply, width + 2 * wide, width + 2 * wide, accesses=(mixed, mixed)),
            TorchOperator(add, width + 2 * wide, 0, (1, 0), (mixed, 0.0)),
            TorchOperator(add, 2 * wide, 6 * width, (1, 2)),
            TorchOperator(elementary("tanh", GELU.name), 2 * wide, 3 * wide),
        )
        casts = (
            (TorchOperator(cast, both, both, accesses=(2.0, 2.0)), TorchOperator(cast, both, 3 * both, (1, 3)))
            if wide > width
            else ()
        )
        return composed(elements, precision, GELU, (*parts, *casts), width + 3 * wide)
    return Elementwise(elements, 2 * width, 3 * width, kept=width, precision=precision, operation=GELU)


def tanh(elements: int, precision: str) -> Elementwise:
    """One kernel; its backward reads the output again. Also ReLU."""
    return replace(gelu(elements, precision), operation=TANH)


def swiglu(elements: int, precision: str, *, fused: bool = True, separate: bool = True) -> Elementwise:
    """silu(gate) * up for *elements* outputs. Unfused: two kernels, and silu(gate) is kept too.

    If gate and up are not *separate* tensors but halves of one, the backward pass joins their gradients.
    """
    width = BYTES[precision]
    if fused:
        return Elementwise(elements, 3 * width, 5 * width, kept=2 * width, precision=precision, operation=SWIGLU)
    silu, multiply, joined = (elementary(name, SWIGLU.name) for name in ("SiLU", "multiply", "concatenation"))
    # rows of a half lie apart
    apart = 0.0 if separate else 1.0
    parts = (
        TorchOperator(silu, 2, 3, accesses=(2 * apart, 3 * apart)),
        TorchOperator(multiply, 3, 3, accesses=(3 * apart, 3 * apart)),
        TorchOperator(multiply, 0, 3, (0, 1)),
        *(() if separate else (TorchOperator(joined, 0, 4, (0, 1)),)),
    )
    return composed(elements, precision, SWIGLU, parts, 3 * width, width)


def output_gate(elements: int, precision: str, *, fused: bool = True) -> Elementwise:
    """sigmoid(gate) * x for *elements* outputs of attention. Unfused: two kernels. Keeps both factors."""
    width = BYTES[precision]
    if fused:
        return Elementwise(elements, 3 * width, 5 * width, kept=2 * width, precision=precision, operation=OUTPUT_GATE)
    parts = (
        TorchOperator(elementary("sigmoid", OUTPUT_GATE.name), 2, 3),
        TorchOperator(elementary("multiply", OUTPUT_GATE.name), 3, 6, (1, 2)),
    )
    return composed(elements, precision, OUTPUT_GATE, parts, 2 * width, width)


def dropout(elements: int, precision: str) -> Elementwise:
    """Keeps its mask."""
    traffic = 2 * BYTES[precision] + 1
    return Elementwise(elements, traffic, traffic, kept=1, precision=precision, operation=DROPOUT)


def residual(elements: int, precision: str, stream: str, *, drop: bool, fused: bool = True) -> Elementwise:
    """x + dropout(y), or x + y. Its backward adds the two gradients that meet at x.

    *stream*: the precision of x and of the sum; if wider than that of y, the gradient of y is cast.
    """
    width, wide = BYTES[precision], BYTES[stream]
    added, forward, masked = elementary("add", RESIDUAL.name), 2 * wide + width, 2 * width + 1
    cast = wide + width if wide > width else 0
    casts = (TorchOperator(elementary("cast", RESIDUAL.name), 0, cast, (0, 1)),) if cast and not fused else ()
    backward = 3 * wide + (cast if fused else 0)
    mixed = (3.0, 0.0) if casts else (0.0, 0.0)
    if not drop:
        parts: tuple[TorchOperator, ...] = (TorchOperator(added, forward, backward, accesses=mixed), *casts)
        return composed(elements, precision, RESIDUAL, parts, 0.0)
    dropped = elementary("dropout", RESIDUAL.name)
    if fused:
        both = elementary("dropout and add", RESIDUAL.name)
        parts = (
            TorchOperator(both, forward + 1, 0, (1, 0)),
            TorchOperator(added, 0, backward, (0, 1)),
            TorchOperator(dropped, 0, masked, (0, 1)),
        )
    else:
        parts = TorchOperator(dropped, masked, masked), TorchOperator(added, forward, backward, accesses=mixed)
    return composed(elements, precision, RESIDUAL, (*parts, *casts), 1.0)


def cast(elements: int, precision: str, stream: str, copies: int) -> Elementwise:
    """*copies* of the input of products, from *stream* to *precision*; the products keep one, this the others.

    Under torch's autocast each product casts its input (ATen/autocast_mode.cpp: ``cached_cast`` keeps only weights).
    Backward each gradient is cast to *stream*, and they are added up.
    """
    width, wide = BYTES[precision], BYTES[stream]
    back = 2.0 * copies if wide > width else 0.0
    parts = (
        TorchOperator(CAST, copies * (wide + width), copies * (wide + width), (copies, copies), (0.0, back)),
        TorchOperator(elementary("add", CAST.name), 0, 3.0 * wide * (copies - 1), (0, copies - 1)),
    )
    return composed(elements, precision, CAST, parts, (copies - 1) * width)


def rotary(elements: int, precision: str, *, fused: bool = True) -> Elementwise:
    """Rotary embedding of queries and keys, in place of position vectors (Su et al. 2021, arXiv:2104.09864).

    Unfused as Hugging Face writes it, queries and keys apart: negate a half, concatenate, two products, sum. Backward
    there are two products, the gradients of two halves padded with zeros, and sums. Keeps nothing.
    """
    width = BYTES[precision]
    if fused:
        return Elementwise(elements, 2 * width, 2 * width, precision=precision, operation=ROTARY)
    # sums read and write several elements at a time; all else is of halves, or of tables that are broadcast over heads
    parts = TorchOperator(ROTARY, 7, 7, (8, 10), accesses=(7.0, 8.0)), TorchOperator(ROTARY, 3, 7, (2, 4))
    return composed(elements, precision, ROTARY, parts, 0.0, width)


LAYER_NORM, RMS_NORM = Operation("layer norm", "normalisation"), Operation("RMS norm", "normalisation")


def layer_norm(rows: int, features: int, precision: str, output: str = "", *, bias: bool = True) -> Elementwise:
    """Mean and variance over *features*; read and write. Backward reads input and gradient twice, for dx and dw.

    *output*: the precision of what it writes, *precision* unless given.
    """
    tensors = parameter_tensors(features, features) if bias else parameter_tensors(features)
    return _one_kernel(LAYER_NORM, rows * features, precision, output, tensors)


def _one_kernel(
    operation: Operation, elements: int, precision: str, output: str, tensors: tuple[ParameterTensor, ...]
) -> Elementwise:
    width, written = BYTES[precision], BYTES[output or precision]
    both = width + written
    return Elementwise(
        elements,
        both,
        width + both,
        both,
        kept=width,
        parameters=tensors,
        precision=output or precision,
        operation=operation,
    )


def rms_norm(rows: int, features: int, precision: str, output: str = "", *, fused: bool = True) -> Elementwise:
    """A layer norm without mean and bias; unfused as Hugging Face's LlamaRMSNorm and Megatron-LM's RMSNorm, in fp32.

    Unfused it has six operators: cast, square, mean, scale, cast back, weight. Autograd keeps the input in fp32 and
    what the weight multiplies; the backward pass has thirteen kernels.
    """
    width = BYTES[precision]
    tensors = parameter_tensors(features)
    if fused:
        return _one_kernel(RMS_NORM, rows * features, precision, output, tensors)
    wide = width < FP32
    cast = width + FP32 if wide else 0
    # one at a time: the cast to fp32, the scale of a row and the weight of a column; backward the same, and a mean of
    # rows that is spread over them
    single = TorchOperator(
        RMS_NORM,
        cast + 2 * FP32 + 2 * width,
        cast + 3 * FP32 + 2 * width,
        (2 + wide, 3 + wide),
        (4.0 + 2 * wide, 6.0 + 2 * wide),
    )
    rest = TorchOperator(RMS_NORM, cast + 3 * FP32, cast + 15 * FP32 + 4 * width, (2 + wide, 8 + wide))
    made = composed(rows * features, precision, RMS_NORM, (single, rest), FP32 + width)
    return replace(made, parameters=tensors)


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
