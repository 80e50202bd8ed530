"""Normalisations, activations, dropout, residual sums and losses read and write memory; this counts how often.

Fused, an operator reads its operands once and writes its result once; else as torch's own operators do it one by one.
*width* is the bytes of an element; a dropout mask takes one byte. What is kept follows Korthikanti et al. 2022
(arXiv:2205.05198, section 4.1).
"""

from __future__ import annotations

from simulator.kernel import BYTES
from workloads.part import Elementwise

FP32 = 4
"""Bytes in which a loss, and the eager RMSNorm, compute whatever the precision."""


def layer_norm(rows: int, features: int, precision: str, *, bias: bool = True) -> Elementwise:
    """Mean and variance over *features*; read and write. Backward reads input and gradient twice, for dx and dw."""
    width = BYTES[precision]
    counts = (features, features) if bias else (features,)
    return Elementwise(rows * features, 2 * width, 3 * width, 2 * width, kept=width, counts=counts, precision=precision)


def rms_norm(rows: int, features: int, precision: str, *, fused: bool = True) -> Elementwise:
    """As a layer norm without mean and bias; unfused as Hugging Face's LlamaRMSNorm writes it out, in fp32.

    Unfused, six operators: cast, square, mean, scale, cast back, weight; their backward is taken as twice that.
    """
    width = BYTES[precision]
    if fused:
        return Elementwise(
            rows * features, 2 * width, 3 * width, 2 * width, kept=width, counts=(features,), precision=precision
        )
    casts = 2 * (width + FP32) if width < FP32 else 0
    passes = casts + 5 * FP32 + 2 * width
    return Elementwise(
        rows * features,
        passes,
        2 * passes,
        2 * width,
        kept=width,
        counts=(features,),
        launches=(6, 12),
        precision=precision,
    )


def gelu(elements: int, precision: str) -> Elementwise:
    """One kernel, fused or not (torch.nn.GELU); its backward reads the input again. Also tanh and ReLU."""
    width = BYTES[precision]
    return Elementwise(elements, 2 * width, 3 * width, kept=width, precision=precision)


def swiglu(elements: int, precision: str, *, fused: bool = True) -> Elementwise:
    """silu(gate) * up for *elements* outputs; unfused silu and product are two kernels and silu(gate) is kept too."""
    width = BYTES[precision]
    if fused:
        return Elementwise(elements, 3 * width, 5 * width, kept=2 * width, precision=precision)
    return Elementwise(elements, 5 * width, 9 * width, kept=3 * width, launches=(2, 3), precision=precision)


def dropout(elements: int, precision: str) -> Elementwise:
    """Keeps its mask."""
    traffic = 2 * BYTES[precision] + 1
    return Elementwise(elements, traffic, traffic, kept=1, precision=precision)


def residual(elements: int, precision: str, *, drop: bool, fused: bool = True) -> Elementwise:
    """x + dropout(y), or x + y; backward, the two gradients that meet at x are added."""
    width = BYTES[precision]
    if not drop:
        return Elementwise(elements, 3 * width, 3 * width, precision=precision)
    forward = 3 * width + 1 if fused else 5 * width + 1
    launches = (1 if fused else 2, 2)
    return Elementwise(elements, forward, 5 * width + 1, kept=1, launches=launches, precision=precision)


def rotary(elements: int, precision: str, *, fused: bool = True) -> Elementwise:
    """Rotary embedding of queries and keys, in place of position vectors (Su et al. 2021, arXiv:2104.09864).

    Unfused as Hugging Face writes it: negate, concatenate, two products, sum. Needs nothing kept.
    """
    width = BYTES[precision]
    passes, launches = (2, 1) if fused else (2 + 2 + 2 * 2 + 3, 5)
    return Elementwise(elements, passes * width, passes * width, launches=(launches, launches), precision=precision)


def cross_entropy(rows: int, classes: int, precision: str, *, fused: bool = True) -> Elementwise:
    """The loss, in fp32, over *classes* logits a row; keeps the fp32 probabilities.

    Unfused: cast, log-softmax, and backward the same way; fused, logits are read and probabilities written once.
    """
    width = BYTES[precision]
    once = width + FP32
    unfused = 2 * FP32 + (once if width < FP32 else 0)
    traffic, launches = (once, 1) if fused else (unfused, 2 + (width < FP32))
    return Elementwise(rows * classes, traffic, traffic, kept=FP32, launches=(launches, launches), precision=precision)
