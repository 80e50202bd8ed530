"""The head of a transformer: what lies between its last layer and the loss.

A causal model predicts the next token of every position. BERT's heads (Devlin et al. 2018, arXiv:1810.04805, sections 3
and 4; huggingface/transformers, modeling_bert.py):

- *masked_lm*: a product and a norm before the logits over the vocabulary, of all positions, or of those alone whose
  tokens are predicted (google-research/bert, run_pretraining.py, ``gather_indexes``, max_predictions_per_seq);
- *pretraining*: that, and two classes of the first position, by the pooler (next sentence);
- *span*: two numbers of each position, begin and end of an answer (``BertForQuestionAnswering``);
- *classification*: two classes of the first position, by the pooler (``BertForSequenceClassification``).
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.workloads.architectures.layer_parts import casts, norm_operator, streams_taken
from clustersim.workloads.architectures.mlp import gelu_operator
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.operators.elementwise import Elementwise, dropout, tanh
from clustersim.workloads.operators.embedding_and_loss import cross_entropy, vocabulary_parallel_loss
from clustersim.workloads.operators.frozen_weights import Upcast, quantised
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.sharded import (
    column_parallel,
    gathered_output,
    on_the_sequence,
    sequence_gathered,
)

SELECTION = Operation("selection of positions", "elementwise")

CLASSES = 2
"""Of the next sentence, and of a span (begin and end); of a classification, as most of GLUE's tasks have them."""


def head_operators(shape: Shape) -> tuple[Operator, ...]:
    """The operators of the head that *shape* names, with its loss."""
    if shape.head == "span":
        return _span(shape)
    if shape.head == "classification":
        return (*_pooled(shape), *_classes(shape), cross_entropy(1, CLASSES, shape.precision, shape.loss))
    if shape.causal:
        before = (*streams_taken(shape, last=True), norm_operator(shape))
        return (*before, *casts(shape, 1), *_logits_and_loss(shape))
    if shape.head == "pretraining":
        return (*_pooled(shape), *_masked(shape), *_classes(shape))
    return _masked(shape)


def _masked(shape: Shape) -> tuple[Operator, ...]:
    """BERT's transform of the predicted positions, their logits and the loss."""
    few = replace(shape, seq_length=shape.predicted_positions)
    selected = () if few.seq_length == shape.seq_length else (_selection(shape, few),)
    own = few.own_rows
    dense = on_the_sequence(Linear(own, shape.hidden_size, shape.hidden_size, precision=shape.precision), shape.cut)
    transform = (*casts(few, 1), dense, gelu_operator(few, own * shape.hidden_size), norm_operator(few))
    return (*selected, *transform, *casts(few, 1), *_logits_and_loss(few))


def _selection(shape: Shape, few: Shape) -> Operator:
    """The vectors of *few* positions, copied; backward their gradients are written into zeros of all positions."""
    width = BYTES[shape.residual_precision]
    back = width * (2 + shape.own_rows / few.own_rows)
    elements, precision = few.own_rows * shape.hidden_size, shape.residual_precision
    return Elementwise(elements, 2.0 * width, back, launches=(1, 2), precision=precision, operation=SELECTION)


def _pooled(shape: Shape) -> tuple[Operator, ...]:
    """BERT's pooler: a product and a tanh of the first position."""
    product = Linear(1, shape.hidden_size, shape.hidden_size, precision=shape.precision)
    return sequence_gathered(product, shape.cut, shape.sequence_bytes), tanh(shape.hidden_size, shape.precision)


def _classes(shape: Shape) -> tuple[Operator, ...]:
    """Two classes of the pooled vector, which is dropped out where they are all that the model predicts."""
    alone = shape.head == "classification" and shape.dropout
    drop = (dropout(shape.hidden_size, shape.precision),) if alone else ()
    return (*drop, Linear(1, shape.hidden_size, CLASSES, precision=shape.precision, hidden=False))


def _span(shape: Shape) -> tuple[Operator, ...]:
    """Two numbers of each position, and the loss of each over all positions."""
    scores = Linear(shape.own_rows, shape.hidden_size, CLASSES, precision=shape.precision, hidden=False)
    loss = cross_entropy(CLASSES, shape.own_rows, shape.precision, shape.loss)
    return (*casts(shape, 1), on_the_sequence(scores, shape.cut), loss)


def _logits_and_loss(shape: Shape) -> tuple[Operator, Operator]:
    """The logits of one rank, and the loss: of its classes, of all that it gathers, or of its positions."""
    rows, precision, cut = shape.seq_length, shape.precision, shape.cut
    logits = _logits(shape)
    if cut.sequence_head:
        own = replace(logits, rows=rows // cut.ranks, outputs=shape.vocab_size, kept_share=1)
        return on_the_sequence(own, cut), cross_entropy(own.rows, own.outputs, precision, shape.loss)
    product = column_parallel(logits, cut)
    if shape.software.gather_logits:
        classes = shape.vocabulary * cut.ranks
        return gathered_output(product, cut, float(rows * classes * BYTES[precision])), cross_entropy(
            rows, classes, precision, shape.loss
        )
    loss = cross_entropy(rows, shape.vocabulary, precision, shape.loss)
    return product, vocabulary_parallel_loss(loss, cut, rows)


def _logits(shape: Shape) -> Linear:
    """The product with the rows of the vocabulary that one rank holds."""
    logits = Linear(
        shape.seq_length,
        shape.hidden_size,
        shape.vocabulary,
        bias=not shape.causal or shape.head_bias,
        precision=shape.precision,
        shared=shape.embedding.tied,
        kept_share=shape.kept_share,
        hidden=False,
        padded=shape.software.padded_vocabulary,
    )
    if shape.prepared and shape.lora and "head" not in shape.lora.whole:
        return quantised(logits, Upcast())
    return logits
