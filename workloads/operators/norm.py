"""Normalisations over the features of a row."""

from __future__ import annotations

from simulator.kernel import BYTES
from simulator.operation import Operation
from workloads.operators.elementwise import Elementwise
from workloads.operators.parameter import ParameterTensor, parameter_tensors

LAYER_NORM, RMS_NORM = Operation("layer norm", "normalisation"), Operation("RMS norm", "normalisation")

FP32 = 4
"""Bytes in which Hugging Face's RMSNorm computes, whatever the precision."""


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
    casts = 2 * (width + FP32) if width < FP32 else 0
    return Elementwise(
        rows * features,
        casts + 5 * FP32 + 2 * width,
        casts + 18 * FP32 + 6 * width,
        kept=FP32 + width,
        parameters=tensors,
        launches=(6, 13) if casts else (4, 11),
        precision=precision,
        operation=RMS_NORM,
    )
