"""Scale, mask, softmax and dropout of the scores of attention by torch's own operators, one kernel each.

Scores have 16 bits where products return them so, and some of these operators run in fp32. Under torch's autocast that
is the softmax (ATen/autocast_mode.h, AT_FORALL_FP32_SET_OPT_DTYPE) and all behind it, until the next product or a cast
in the model; models in 16 bits may ask for it themselves (Megatron-LM, FusedScaleMaskSoftmax.forward_torch_softmax).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.workloads.operators.elementwise import Elementwise, TorchOperator, composed

FP32 = BYTES["fp32"]

SOFTMAX = Operation("softmax", "normalisation", "attention")
OF_SOFTMAX = {name: Operation(name, SOFTMAX.kind, SOFTMAX.operator) for name in ("scale", "mask", "cast", "dropout")}
"""Operations over the scores. They count as normalisation too, as part of the softmax (Ivanov et al. 2021,
arXiv:2007.00072, table 1)."""


def torch_softmax(
    precision: str, in_fp32: Collection[str], *, masks: bool = True, drop: bool = True
) -> Iterator[TorchOperator]:
    """Yield the kernels, with the bytes that they move for each score; *masks*, *drop*: whether these operators run.

    *in_fp32*: those of scale, mask, softmax and dropout that run in fp32 if *precision* has 16 bits. What the first of
    them reads is cast: by a kernel of its own; as the mask is added, which is in fp32 then (promotion of types); or by
    the softmax of fp16, the only type for which it can (ATen/native/SoftMax.cpp, ``half_to_float``).

    A mask is added, so that nothing runs backward. Megatron-LM, which scales in fp32 too, fills it in (model/utils.py,
    ``attention_mask_func``); gradients are then copied and filled (ATen/native/TensorAdvancedIndexing.cpp,
    ``masked_fill``).

    >>> [sum(getattr(one, way) for one in torch_softmax("bf16", ("softmax", "dropout")))
    ...  for way in ("forwards", "backwards")]
    [37, 49]
    """
    width = BYTES[precision]
    given, fills = width, "scale" in in_fp32
    for name in ("scale", *("mask",) * masks, "softmax", *("dropout",) * drop):
        own = max(width, FP32) if name in in_fp32 else width
        both = given + own
        if own > given and name == "mask":
            # the mask has 16 bits too, and is broadcast
            yield TorchOperator(OF_SOFTMAX["mask"], both, 0, (1, 0), (3.0, 0.0))
            yield TorchOperator(OF_SOFTMAX["cast"], 0, both, (0, 1))
        elif own > given and name == "softmax" and precision == "fp16":
            yield _softmax(own, given)
        else:
            if own > given:
                yield TorchOperator(OF_SOFTMAX["cast"], both, both, accesses=(2.0, 0.0))
            elif own < given:
                yield TorchOperator(OF_SOFTMAX["cast"], both, both, accesses=(0.0, 2.0))
            yield _operator(name, own, fills=fills)
        given = own
    if given > width:
        yield TorchOperator(OF_SOFTMAX["cast"], given + width, given + width, accesses=(0.0, 2.0))


def _operator(name: str, width: int, *, fills: bool) -> TorchOperator:
    """The operator *name* over scores of *width* bytes, which it reads and writes; *fills*: the mask is filled in."""
    both = 2 * width
    match name:
        case "softmax":
            return _softmax(width, width)
        case "mask":
            single = (2.0, 2.0 if fills else 0.0)
            return TorchOperator(OF_SOFTMAX[name], both, 2 * both if fills else 0, (1, 2 if fills else 0), single)
        case "dropout":
            # with a byte of its mask
            return TorchOperator(OF_SOFTMAX[name], both + 1, both + 1)
    return TorchOperator(OF_SOFTMAX[name], both, both)


def _softmax(width: int, scores: int) -> TorchOperator:
    """Probabilities of *width* bytes, of *scores* of so many.

    Backward there are two kernels: gradients times probabilities, and the sum over a row with the rest
    (ATen/native/cuda/SoftMax.cu, ``softmax_backward_cuda_out``: ``Tensor tmp = grad * output``).
    """
    return TorchOperator(SOFTMAX, scores + width, 3 * width + 2 * width + scores, (1, 2))


COPY = Operation("copy of heads", "elementwise", "attention")


def copied_heads(positions: int, queries: int, keys: int, precision: str, *, joint: bool) -> Elementwise:
    """The copies around products of heads, if samples come before positions, and positions before heads.

    *queries*, *keys*: features of all heads of a position. torch.matmul copies its operands so that samples and heads
    are one dimension (ATen/native/LinearAlgebra.cpp, ``_matmul_impl``: ``expand`` and ``reshape``), fewer keys and
    values than queries are repeated, and the output is copied for the product behind. Backward the gradient of the
    output is copied, those of repeated keys and values are summed, and those of queries, keys and values are copied
    back; *joint*: and put together for one product, which takes keys as they are if they are not repeated.
    """
    repeated = keys < queries
    forward = 4 * queries + 2 * (queries + keys)
    backward = 4 * queries + 4 * keys + 2 * (queries + keys) * repeated
    launches = 4 + 2 * repeated
    if joint:
        backward += 2 * (queries + 2 * keys) - 2 * keys * (not repeated)
        launches += repeated
    moved = forward / queries, backward / queries
    return composed(
        positions * queries,
        precision,
        COPY,
        (TorchOperator(COPY, *moved, (4, launches), accesses=moved),),
        0.0,
        BYTES[precision],
    )
