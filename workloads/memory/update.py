"""The kernels of an optimizer step over tensors: elementwise, Adafactor's by factors, or Muon's by products.

Adafactor is counted in torch/optim (2.13): _adafactor.py, _multi_tensor_adafactor. Passes over a matrix: its norm 1,
norms of rows and of columns of the gradient 2, outer product 1, div 2, clamp 2, rsqrt 2, mul 3, norm of the update 1,
mul 2, add 3; over a vector: its norm 1, square 3 (of one tensor, which is read once: 2), lerp 3, clone 2, clamp 2,
rsqrt 2, mul 3, norm 1, mul 2, add 3. A first moment adds mul 2 and add 3.

Muon orthogonalises the momentum of each hidden matrix by five Newton-Schulz steps in bf16 (torch/optim/_muon.py):
A = X X^T, B = b A + c A A, X = a X + B X, with r rows and c >= r columns 4 r^2 c + 2 r^3 FLOPs each. Its elementwise
part: two lerps 3 + 3, cast, norm, div, decay 2, add 3. Under tensor parallelism each rank orthogonalises its own
shards (Megatron-LM, ``--muon-tp-mode blockwise``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

from simulator.kernel import BYTES, Kernel, matmul, memory_bound
from workloads.memory.optimizer import (
    BY_SHAPE,
    CHUNK,
    FP32,
    MUON,
    WITH_MOMENTUM,
    Around,
    Optimizer,
    around,
    as_optimizer,
    optimizer_kernels,
)
from workloads.operators.parameter import ParameterTensor

NEWTON_SCHULZ_STEPS = 5
"""torch/optim/_muon.py: ``ns_steps=5``."""

HALF = "bf16"
"""The precision of Newton-Schulz steps."""

MATRIX_PASSES, VECTOR_PASSES, MOMENTUM_PASSES = 19, 21, 5
"""Passes of Adafactor over fp32 memory, and those of a first moment."""

FOREACH, EACH, EACH_VECTOR = 6, 5, 2
"""Kernels of Adafactor for many tensors at once, and for each matrix or vector: norms and outer products."""


def update_kernels(
    tensors: Iterable[ParameterTensor],
    optimizer: str | Optimizer,
    precision: str,
    gradient_dtype: str | None = None,
    *,
    fused: bool = True,
    unfused_update: bool = False,
    flat_update: bool = False,
) -> tuple[Kernel, ...]:
    """The kernels of one step over those of *tensors* that are trained; other arguments as of `optimizer_kernels`.

    Raises `ScenarioError` for an unknown optimizer.
    """
    own, known = [tensor for tensor in tensors if tensor.trainable], as_optimizer(optimizer)

    def elementwise(several: Sequence[ParameterTensor], kind: Optimizer) -> tuple[Kernel, ...]:
        count = sum(tensor.count for tensor in several)
        how = {"fused": fused, "unfused_update": unfused_update, "flat_update": flat_update}
        return optimizer_kernels(count, kind, precision, gradient_dtype, **how)

    if known.name not in BY_SHAPE:
        return elementwise(own, known)
    beside = around(precision, gradient_dtype, unfused_update=unfused_update, flat_update=flat_update)
    if known.name == MUON:
        rest = elementwise([tensor for tensor in own if not tensor.hidden], replace(known, name="adam"))
        return (*rest, *_muon([tensor for tensor in own if tensor.hidden], known, beside))
    return _adafactor(own, beside, momentum=known.name == WITH_MOMENTUM)


def _adafactor(tensors: Sequence[ParameterTensor], beside: Around, *, momentum: bool) -> tuple[Kernel, ...]:
    more = MOMENTUM_PASSES if momentum else 0
    made: list[Kernel] = []
    for several, passes, each in (
        ([tensor for tensor in tensors if tensor.rows], MATRIX_PASSES, EACH),
        ([tensor for tensor in tensors if not tensor.rows], VECTOR_PASSES, EACH_VECTOR),
    ):
        if count := sum(tensor.count for tensor in several):
            launches = (FOREACH + 2 * momentum + beside.passes) * ceil(count / CHUNK) + each * len(several)
            made.append(memory_bound(count * (FP32 * (passes + more) + beside.nbytes), launches=launches))
    return tuple(made)


def _muon(matrices: Sequence[ParameterTensor], known: Optimizer, beside: Around) -> tuple[Kernel, ...]:
    if not matrices:
        return ()
    count, state = sum(tensor.count for tensor in matrices), BYTES[known.dtype]
    # momentum: gradient and state read, state written; Nesterov's: both read, the result written, then cast
    first = (FP32 + 2 * state) + (FP32 + state + FP32) + (FP32 + BYTES[HALF])
    # norm, division; decay of the weights; they are read and written once more, with what is added
    last = 3 * BYTES[HALF] + 2 * FP32 + (2 * FP32 + BYTES[HALF])
    launches = 7 * len(matrices) + beside.passes * ceil(count / CHUNK)
    elementwise = memory_bound(count * (first + last + beside.nbytes), launches=launches)
    sides = Counter((tensor.rows, tensor.count // tensor.rows) for tensor in matrices)
    products = (kernel for (rows, columns), n in sides.items() for kernel in newton_schulz(rows, columns, n))
    return elementwise, *products


def newton_schulz(rows: int, columns: int, matrices: int = 1) -> tuple[Kernel, ...]:
    """The products that orthogonalise so many *matrices*; equal ones are one batch here, but a launch each.

    >>> sum(kernel.flops for kernel in newton_schulz(10, 20)) == 5 * (4 * 10 * 10 * 20 + 2 * 10**3)
    True
    """
    short, long = min(rows, columns), max(rows, columns)
    products = (
        matmul(short, short, long, batch=matrices, precision=HALF),
        _with_sum(matmul(short, short, short, batch=matrices, precision=HALF), matrices * short * short),
        _with_sum(matmul(short, long, short, batch=matrices, precision=HALF), matrices * short * long),
    )
    return tuple(replace(kernel, launches=matrices) for kernel in products) * NEWTON_SCHULZ_STEPS


def _with_sum(product: Kernel, elements: int) -> Kernel:
    """*product*, which also reads what it is added to."""
    return replace(product, nbytes=product.nbytes + elements * BYTES[HALF])
