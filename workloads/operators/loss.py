"""The loss over the logits of a model."""

from __future__ import annotations

from simulator.kernel import BYTES
from workloads.operators.elementwise import Elementwise
from workloads.operators.operator import Operator
from workloads.operators.segment import Exchange
from workloads.operators.sharded import Cut, ShardedOperator

FP32 = 4
"""Bytes of a number of the loss, whatever the precision of the model.

Vocabulary-parallel maxima, sums and predicted logits too (Megatron-LM, vocab_parallel_cross_entropy).
"""


def cross_entropy(rows: int, classes: int, precision: str, *, fused: bool = True) -> Elementwise:
    """The loss, in fp32, over *classes* logits a row; keeps the fp32 probabilities.

    Unfused: cast, log-softmax, and backward the same way. Fused: logits are read and probabilities written once.
    """
    width = BYTES[precision]
    once = width + FP32
    unfused = 2 * FP32 + (once if width < FP32 else 0)
    traffic, launches = (once, 1) if fused else (unfused, 2 + (width < FP32))
    return Elementwise(rows * classes, traffic, traffic, kept=FP32, launches=(launches, launches), precision=precision)


def vocabulary_parallel_loss(loss: Operator, cut: Cut, rows: int) -> Operator:
    """A loss where each rank has some of the logits of *rows* rows.

    The maximum, the predicted logit and the sum of exponentials of each row are all-reduced.
    """
    if cut.ranks == 1:
        return loss
    each = ("F", Exchange("all_reduce", float(FP32 * rows), cut.over))
    return ShardedOperator(loss, loss.tensors, after=(each,) * 3)
