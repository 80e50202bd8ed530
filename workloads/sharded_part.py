"""A part of which each tensor-parallel rank holds a share knows what the ranks exchange around its kernels.

Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053, section 3): a product cut by columns needs no exchange forward and
sums the gradient of its input backward; one cut by rows sums its output forward. Under sequence parallelism
(Korthikanti et al. 2022, arXiv:2205.05198, section 4.2) each of these all-reduces falls into a reduce-scatter there and
an all-gather in the other pass, and an input is kept as a shard, so that the weight gradient gathers it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel
from workloads.part import Linear, Part
from workloads.passage import Exchange
from workloads.shape import Shape

LOSS_BYTES = 4
"""Maxima, sums and predicted logits are exchanged in fp32 (Megatron-LM, vocab_parallel_cross_entropy)."""


@dataclass(frozen=True)
class ShardedPart(Part):
    """*part*, one rank's share, with what the ranks exchange before and after it in phases F, I and W.

    *partial*: how many of its parameters every rank holds, but sees only its own part of the sequence of.
    """

    part: Part
    before: tuple[tuple[str, Exchange], ...] = ()
    after: tuple[tuple[str, Exchange], ...] = ()
    partial: int = 0

    @property
    def tensors(self) -> tuple[int, ...]:
        """Those of the share."""
        return self.part.tensors

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the share."""
        return self.part.forward(samples)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """As the share."""
        return self.part.backward_input(samples)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """As the share."""
        return self.part.backward_weights(samples)

    def kept_bytes(self, samples: int) -> float:
        """As the share."""
        return self.part.kept_bytes(samples)

    def weight_bytes(self, samples: int) -> float:
        """As the share."""
        return self.part.weight_bytes(samples)

    @property
    def partial_parameters(self) -> int:
        """As given."""
        return self.partial

    def exchanges(self, phase: str, samples: int) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]]:
        """Those of *phase*, for so many samples."""
        before, after = (
            tuple(exchange.times(samples) for when, exchange in given if when == phase)
            for given in (self.before, self.after)
        )
        return before, after


def column_parallel(linear: Linear, shape: Shape) -> Part:
    """A product cut by its outputs; its input is whole on every rank, or gathered from the shards of the sequence."""
    if shape.tensor_parallel == 1:
        return linear
    nbytes = float(linear.rows * linear.inputs * BYTES[linear.precision])
    if not shape.sequence_parallel:
        return ShardedPart(linear, after=(("I", Exchange("all_reduce", nbytes, divisible=True)),))
    gather, scatter = (Exchange(kind, nbytes, divisible=True) for kind in ("all_gather", "reduce_scatter"))
    return ShardedPart(linear, (("F", gather), ("W", gather)), (("I", scatter),))


def row_parallel(linear: Linear, shape: Shape) -> Part:
    """A product cut by its inputs; every rank makes a summand of the output. Its bias is added to the sum."""
    if shape.tensor_parallel == 1:
        return linear
    nbytes = float(linear.rows * linear.outputs * BYTES[linear.precision])
    if not shape.sequence_parallel:
        return ShardedPart(linear, after=(("F", Exchange("all_reduce", nbytes, divisible=True)),))
    gather, scatter = (Exchange(kind, nbytes, divisible=True) for kind in ("all_gather", "reduce_scatter"))
    return ShardedPart(linear, (("I", gather),), (("F", scatter),), linear.outputs * linear.bias)


def vocabulary_parallel_embedding(lookup: Part, shape: Shape, tables: int) -> Part:
    """A lookup where each rank holds some of the words and contributes zeros for the others.

    Under sequence parallelism Megatron-LM scatters the sum at once only if there is no second of *tables*, which is
    added to all of it (LanguageModelEmbedding, reduce_scatter_embeddings); the gradient is gathered.
    """
    if shape.tensor_parallel == 1:
        return lookup
    nbytes = shape.hidden_bytes * shape.shard
    scattered = shape.sequence_parallel and tables == 1
    summed = Exchange("reduce_scatter" if scattered else "all_reduce", nbytes)
    gathered = (("I", Exchange("all_gather", nbytes)),) if shape.sequence_parallel else ()
    return ShardedPart(lookup, gathered, (("F", summed),))


def vocabulary_parallel_loss(loss: Part, shape: Shape) -> Part:
    """A loss over logits of which each rank has some: maximum, predicted logit and sum of exponentials are reduced."""
    if shape.tensor_parallel == 1:
        return loss
    each = ("F", Exchange("all_reduce", float(LOSS_BYTES * shape.seq_length)))
    return ShardedPart(loss, after=(each,) * 3)


def sequence_gathered(linear: Linear, shape: Shape) -> Part:
    """A small product that every rank makes, over a position of the sequence that one of them has."""
    if not shape.sequence_parallel or shape.tensor_parallel == 1:
        return linear
    return ShardedPart(linear, (("F", Exchange("all_gather", shape.hidden_bytes * shape.shard)),))


def on_the_sequence(part: Part, shape: Shape) -> Part:
    """A part that runs on each rank's own piece of the sequence: the gradients of its parameters are summands."""
    return part if shape.shard == 1 else ShardedPart(part, partial=sum(part.tensors))
