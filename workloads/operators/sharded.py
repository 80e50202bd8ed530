"""Operators cut over the ranks of a tensor-parallel group, with the exchanges that the cut needs.

Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053, section 3): a product cut by columns needs no exchange in the
forward pass and sums the gradient of its input in the backward pass. A product cut by rows sums its output in the
forward pass. Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2) splits each of these
all-reduces into a reduce-scatter in that pass and an all-gather in the other pass. An input is then kept as a shard,
and gathered again for the weight gradient.

The textbook's other way cuts both products by columns: their outputs are concatenated, so each product has an exchange
of its own. Heads and elementwise operators work on the columns of one rank. The second product gathers its input, and
its output is gathered for the next layer. Backward, the gather of the input becomes a reduce-scatter.

A grid is a way to cut a transformer over several axes of ranks at once.

Between two blocks, a rank holds some of the samples, and of these some of the hidden features. Within a block it holds
some of the columns: heads, or features of the feed-forward network. A grid says which axis cuts which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, prod

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.records import changed
from clustersim.workloads.operators.linear import Linear, SharedInput, SummedOutput
from clustersim.workloads.operators.operator import Exchange, Operator, ParameterTensor, Segment


@dataclass(frozen=True, slots=True)
class Side:
    """*ranks* ranks along the axis *over*."""

    over: str
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Grid(ABC):
    """*columns* and *features*: the side that cuts each. *samples*: the sides that divide the samples of a micro-batch.

    *copies*: the ranks that hold the same columns of the same samples, and compute the same between two products.
    *equal*: the axis with the ranks that hold the same output of a layer; "" if there is none.
    """

    columns: Side
    features: Side
    samples: Sequence[Side]
    copies: int = 1
    equal: str = ""

    @property
    def sample_shares(self) -> int:
        """The parts into which a micro-batch is divided."""
        return prod(side.ranks for side in self.samples)

    def summed(self, tensors: Iterable[ParameterTensor], *sides: Side) -> tuple[ParameterTensor, ...]:
        """*tensors* that every rank of *sides* has, with a gradient of its own samples or heads from each."""
        axes = tuple(side.over for side in sides if side.ranks > 1)
        return tuple(replace(tensor, reduced_over=(*axes, *tensor.reduced_over)) for tensor in tensors)

    def of_features(self, tensors: Iterable[ParameterTensor]) -> tuple[ParameterTensor, ...]:
        """A rank's part of *tensors* with an element for each hidden feature, such as those of norms."""
        own = (replace(tensor, count=ceil(tensor.count / self.features.ranks)) for tensor in tensors)
        return self.summed(own, *self.samples)

    @abstractmethod
    def first(self, product: Operator) -> Operator:
        """The first product of a block or the logits; it is given with all inputs and the columns of one rank."""

    @abstractmethod
    def second(self, product: Operator) -> Operator:
        """The second product of a block; it is given with the columns of one rank as inputs and with all outputs."""

    @abstractmethod
    def lookup(self, embedding: Operator) -> Operator:
        """An embedding; its first table is given with the rows of one column of ranks, and with all features."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Operators are cut over *ranks* ranks of the axis *over*.

    *sequence*: operators that are not cut run on a shard of the sequence each (sequence parallelism). *by_columns*: the
    second product of a block is cut by columns too, not by rows. *grid*: they are cut over several axes; *over* and
    *ranks* are then those of the columns. *sequence_head*: logits and loss too run on a shard of the sequence.
    *batch_first*, *pieces*: shards of the sequence are exchanged as `BatchFirst` has them.
    """

    over: str = ""
    ranks: int = 1
    sequence: bool = False
    by_columns: bool = False
    grid: Grid | None = None
    sequence_head: bool = False
    batch_first: bool = False
    pieces: int = 1

    @property
    def sequence_shards(self) -> int:
        """The number of shards of the sequence where an operator is not cut; on a grid, of the hidden features."""
        if self.grid:
            return self.grid.features.ranks
        return self.ranks if self.sequence else 1


WHOLE = Cut()
"""Nothing is cut."""


@dataclass(frozen=True)
class ShardedOperator(Operator):
    """*share*, the share of one rank, with the exchanges *before* and *after* it by phase: (F, I or W, exchange).

    *parameters*: its tensors, with the axes that reduce them.
    """

    share: Operator
    parameters: tuple[ParameterTensor, ...]
    before: tuple[tuple[str, Exchange], ...] = ()
    after: tuple[tuple[str, Exchange], ...] = ()

    @property
    def operation(self) -> Operation:
        """As the share."""
        return self.share.operation

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the share."""
        return self.share.forward(samples)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """As the share."""
        return self.share.backward_input(samples)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """As the share."""
        return self.share.backward_weights(samples)

    def kept_bytes(self, samples: int) -> float:
        """As the share."""
        return self.share.kept_bytes(samples)

    @property
    def keeps_inputs(self) -> bool:
        """As the share."""
        return self.share.keeps_inputs

    def transient_bytes(self, phase: str, samples: int) -> float:
        """As the share."""
        return self.share.transient_bytes(phase, samples)

    def weight_bytes(self, samples: int) -> float:
        """As the share."""
        return self.share.weight_bytes(samples)

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the share."""
        return self.share.recomputable_forward(samples)

    def recomputable_bytes(self, samples: int) -> float:
        """As the share."""
        return self.share.recomputable_bytes(samples)

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """The share's segments between the exchanges of *phase*."""
        first, *rest = self.share.segments(phase, samples)
        before, after = _of(self.before, phase, samples), _of(self.after, phase, samples)
        segments = [changed(first, before=before + first.before), *rest]
        segments[-1] = changed(segments[-1], after=segments[-1].after + after)
        return tuple(segments)


COPIES = Operation("copies of exchanged tensors", "elementwise")


@dataclass(frozen=True)
class BatchFirst(ShardedOperator):
    """A `ShardedOperator` that exchanges shards of the sequence of tensors whose first dimension are the samples.

    The library exchanges along the first dimension. So a gather of several samples is followed by a copy of its vector,
    and a reduce-scatter follows one (torch, distributed/_functional_collectives.py, ``all_gather_tensor`` and
    ``reduce_scatter_tensor``: chunks are concatenated along the dimension).

    *pieces*: product and divisible exchange are one operator in so many pieces. Nothing is exchanged beside the last
    piece after a gather, or the first before a reduce-scatter. A rank copies its shard to where others read it, or adds
    up a partial result of each rank (torch's asynchronous tensor parallelism: distributed/_symmetric_memory,
    ``_pipelined_all_gather_and_consume`` and ``_fused_matmul_reduce_scatter_impl``).
    """

    pieces: int = 1

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """All kernels, in order."""
        return tuple(kernel for segment in self.segments("F", samples) for kernel in segment.kernels)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """All kernels, in order."""
        return tuple(kernel for segment in self.segments("I", samples) for kernel in segment.kernels)

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """As the share's, with the copies and sums of each exchange."""
        (made,) = super().segments(phase, samples)
        fused = [one for one in made.exchanges if one.divisible and self.pieces > 1 and phase != "W"]
        if fused:
            return self._in_pieces(made, fused[0])
        copies = [() if samples == 1 else _copied(2 * sum(e.nbytes for e in one)) for one in (made.before, made.after)]
        return (changed(made, kernels=(*copies[0], *made.kernels, *copies[1])),)

    def _in_pieces(self, made: Segment, exchange: Exchange) -> tuple[Segment, ...]:
        """*made* with its *exchange* beside all pieces of the product but one."""
        one = tuple(_part(kernel, 1, self.pieces) for kernel in made.kernels if kernel.flops)
        rest = tuple(_part(kernel, self.pieces - 1, self.pieces) for kernel in made.kernels)
        if made.before:
            local = _copied(2 * exchange.nbytes / self.pieces)
            return Segment(local), changed(made, kernels=rest), Segment(one)
        summed = _copied(exchange.nbytes * (1 + 1 / self.pieces))
        return Segment(one), changed(made, kernels=rest), Segment(summed)


def _copied(nbytes: float) -> tuple[Kernel, ...]:
    """A kernel that moves *nbytes*, if there are any."""
    return (memory_bound(nbytes, operation=COPIES),) if nbytes else ()


def _part(kernel: Kernel, pieces: int, of: int) -> Kernel:
    """So many *pieces*, a launch each, *of* those into which the rows of a product are divided; else *kernel*."""
    if not kernel.flops or kernel.shape is None:
        return kernel
    share, (batch, m, n, k) = pieces / of, kernel.shape
    shape = batch, ceil(m * share), n, k
    return replace(kernel, flops=kernel.flops * share, nbytes=kernel.nbytes * share, shape=shape, launches=pieces)


def _of(given: Iterable[tuple[str, Exchange]], phase: str, samples: int) -> tuple[Exchange, ...]:
    own = (exchange for when, exchange in given if when == phase)
    return tuple(exchange if exchange.of_weights else exchange.times(samples) for exchange in own)


def column_parallel(linear: Linear | SharedInput, cut: Cut, *, summed_first: bool = True) -> Operator:
    """A product cut by its outputs. Every rank has the whole input, or gathers it from the shards of the sequence.

    Products of one input exchange it, and the sum of its gradients, once; without shards of the sequence, the gradient
    from each product if they are not *summed_first*.
    """
    if cut.grid:
        return cut.grid.first(linear)
    if cut.ranks == 1:
        return linear
    nbytes = float(linear.rows * linear.inputs * BYTES[linear.precision])
    if not cut.sequence:
        times = 1 if summed_first or isinstance(linear, Linear) else len(linear.products)
        exchange = _divisible("all_reduce", nbytes, cut)
        return ShardedOperator(linear, linear.tensors, after=(("I", exchange),) * times)
    gathered = float(linear.rows * linear.inputs * linear.gathered_input_bytes)
    gather, scatter = _divisible("all_gather", gathered, cut), _divisible("reduce_scatter", nbytes, cut)
    again = (("W", gather),) if linear.kept_share > 1 and linear.kept_bytes(1) > linear.kept_beside_input(1) else ()
    if cut.batch_first:
        scatter = _of_one_product(scatter, linear, cut)
    return _on_shards(linear, linear.tensors, (("F", gather), *again), (("I", scatter),), cut)


def gathered_output(operator: Operator, cut: Cut, nbytes: float) -> Operator:
    """An operator cut by its outputs; every rank gathers all of them, *nbytes* a sample."""
    if cut.ranks == 1:
        return operator
    return ShardedOperator(operator, operator.tensors, after=(("F", Exchange("all_gather", nbytes, cut.over)),))


def second_parallel(linear: Linear | SummedOutput, cut: Cut) -> Operator:
    """The second product of a block, given with the inputs of one rank: cut by rows, or by columns too."""
    if cut.grid:
        return cut.grid.second(linear)
    if isinstance(linear, Linear) and cut.by_columns and cut.ranks > 1:
        return gathered_column_parallel(linear, cut)
    return row_parallel(linear, cut)


def gathered_column_parallel(linear: Linear, cut: Cut) -> Operator:
    """A product cut by its outputs, of an input that each rank has some columns of. Its output is gathered too.

    *linear* has the inputs of one rank and all outputs.
    """
    own = replace(linear, inputs=linear.inputs * cut.ranks, outputs=linear.outputs // cut.ranks)
    taken, given = (float(linear.rows * n * BYTES[linear.precision]) for n in (own.inputs, linear.outputs))
    gather, scatter = _divisible("all_gather", taken, cut), _divisible("reduce_scatter", taken, cut)
    result = _divisible("all_gather", given, cut)
    return ShardedOperator(own, own.tensors, (("F", gather),), (("F", result), ("I", scatter)))


def row_parallel(linear: Linear | SummedOutput, cut: Cut) -> Operator:
    """A product cut by its inputs. Every rank computes a summand of the output; the bias is added to the sum.

    Products that are summed into one output exchange that, and its gradient, once.
    """
    if cut.ranks == 1:
        return linear
    nbytes = float(linear.rows * linear.outputs * BYTES[linear.precision])
    if not cut.sequence:
        return ShardedOperator(linear, linear.tensors, after=(("F", _divisible("all_reduce", nbytes, cut)),))
    gathered = float(linear.rows * linear.outputs * linear.gathered_gradient_bytes)
    gather, scatter = _divisible("all_gather", gathered, cut), _divisible("reduce_scatter", nbytes, cut)
    tensors: list[ParameterTensor] = []
    for product in linear.products if isinstance(linear, SummedOutput) else (linear,):
        weight, *others = product.tensors
        # each rank adds the bias to its own positions only
        bias, adapters = others[: product.bias], others[product.bias :]
        tensors += weight, *summed_over(bias, cut.over), *adapters
    if cut.batch_first:
        scatter = _of_one_product(scatter, linear, cut)
    return _on_shards(linear, tuple(tensors), (("I", gather),), (("F", scatter),), cut)


def _on_shards(
    linear: Operator,
    tensors: tuple[ParameterTensor, ...],
    before: tuple[tuple[str, Exchange], ...],
    after: tuple[tuple[str, Exchange], ...],
    cut: Cut,
) -> ShardedOperator:
    """*linear* between exchanges of shards of the sequence."""
    if cut.batch_first:
        return BatchFirst(linear, tensors, before, after, pieces=cut.pieces)
    return ShardedOperator(linear, tensors, before, after)


def _of_one_product(scatter: Exchange, linear: Operator, cut: Cut) -> Exchange:
    """*scatter* of what *linear* makes: only the result of one product is made and scattered in pieces.

    torch fuses a reduce-scatter with the product before it, and not with a sum of products (torch,
    _inductor/fx_passes/micro_pipeline_tp.py, ``_find_producer_matmul``).
    """
    return scatter if isinstance(linear, Linear) or cut.pieces == 1 else replace(scatter, divisible=False)


def sequence_gathered(linear: Linear, cut: Cut, nbytes: float) -> Operator:
    """A small product that every rank computes over a position of the sequence that one rank holds.

    The sequence, *nbytes* in all, is gathered for it.
    """
    if cut.sequence_shards == 1:
        return linear
    return ShardedOperator(linear, linear.tensors, (("F", Exchange("all_gather", nbytes, cut.over)),))


def norm_of_features(norm: Operator, rows: int, cut: Cut, sums: int) -> Operator:
    """A norm over hidden features that a grid cuts: ranks add up *sums* fp32 numbers of each of *rows* in each pass."""
    if not cut.grid:
        return on_the_sequence(norm, cut)
    side, nbytes = cut.grid.features, float(sums * rows * BYTES["fp32"])
    added = Exchange("all_reduce", nbytes, side.over)
    before = (("F", added), ("I", added)) if side.ranks > 1 else ()
    return ShardedOperator(norm, cut.grid.of_features(norm.tensors), before)


def norm_of_heads(norm: Operator, cut: Cut) -> Operator:
    """A norm of each head by itself: ranks with other heads or samples have the same weights."""
    if cut.grid:
        return ShardedOperator(norm, cut.grid.summed(norm.tensors, cut.grid.columns, *cut.grid.samples))
    return ShardedOperator(norm, summed_over(norm.tensors, cut.over) if cut.ranks > 1 else norm.tensors)


def on_the_sequence(operator: Operator, cut: Cut) -> Operator:
    """An operator that runs on each rank's shard of the sequence: its weight gradients are summed over the ranks."""
    if cut.sequence_shards == 1:
        return operator
    return ShardedOperator(operator, summed_over(operator.tensors, cut.over))


def norm_of_columns(norm: Operator, rows: int, cut: Cut) -> Operator:
    """An RMS norm over features that are cut by columns: ranks add up an fp32 number of each of *rows* in each pass."""
    tensors = cut.grid.summed(norm.tensors, *cut.grid.samples) if cut.grid else norm.tensors
    sums = Exchange("all_reduce", float(rows * BYTES["fp32"]), cut.over)
    before = (("F", sums), ("I", sums)) if cut.ranks > 1 else ()
    return ShardedOperator(norm, tensors, before) if before or cut.grid else norm


def summed_over(tensors: Iterable[ParameterTensor], axis: str) -> tuple[ParameterTensor, ...]:
    """*tensors* with gradients that are first summed over *axis*."""
    return tuple(replace(tensor, reduced_over=(axis, *tensor.reduced_over)) for tensor in tensors)


def _divisible(kind: str, nbytes: float, cut: Cut) -> Exchange:
    return Exchange(kind, nbytes, cut.over, divisible=True)
