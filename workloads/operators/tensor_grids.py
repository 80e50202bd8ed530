"""Products cut over grids of tensor-parallel ranks of two, two and a half and three dimensions.

Every matrix is cut into q x q blocks, a block for each rank: rows over y, columns over x. Y = X W takes q steps. In
step l, column l of the blocks of X is broadcast along the rows of the grid, row l of the blocks of W along its columns,
and each rank adds the product of the two blocks. dX = dY W^T broadcasts W and reduces dX, dW = X^T dY broadcasts X and
reduces dW. So nothing but norms is held twice. All ranks together send (q - 1) (|X| + |W|) bytes for each of the
three products.

Two and a half dimensions: *depth* such grids have the same weights and divide the rows further. The gradient of a
weight is summed over them.

van de Geijn and Watts 1997, "SUMMA" (Concurrency 9); Xu et al. 2021, "Optimus" (arXiv:2104.05343, section 3.1); Wang et
al. 2021, "Tesseract" (arXiv:2105.14500, section 3).

Optimus holds biases and norms on the first row of the grid, and broadcasts them. Here all ranks of a column hold them,
as in Megatron-LM, and sum their gradients before the optimizer step. Its logits with tied embeddings are X E^T, which
sends as many bytes as X W of the same sizes if they were reduced before they are used; here it is X W.

Three-dimensional tensor parallelism after Agarwal, as AxoNN runs it, on a grid of ranks x, y and z.

A product of a micro-batch's rows and a weight has its outputs cut over x, its inputs over y and its rows over z. Each
rank holds one part in z of its block of the weight, and gathers the block over z before the forward and the backward
pass. Outputs are summed over y in the forward pass, gradients of inputs over x in the backward pass, and gradients of
weights are summed and scattered over z. The second product of a block is transposed: x and y change places, so that
its inputs lie where the first one left them. So x alone is Megatron-LM's way, z alone is FSDP's for each product.

Agarwal et al. 1995, "A three-dimensional approach to parallel matrix multiplication" (IBM J. Res. Dev. 39); Singh et
al. 2024 (arXiv:2305.13525, section III), 2025 (arXiv:2502.08145, section V). AxoNN calls y the inner and x the outer
group (axonn/intra_layer/fully_connected.py, ``AsyncLinear``).

Ranks of y hold equal columns between two products, and compute attention alike. Norms run on a part of the features,
over which their sums are added up. Biases and norms are held by all ranks of z, which sum their gradients before the
optimizer step.

AxoNN's ``auto_parallelize`` replaces the linear layers of a model, and leaves all others as they are.

Between two linear layers each rank has samples of its own, with all features, as in data parallelism. Each product
begins and ends with exchanges that make the grid's blocks of these samples and undo it (axonn/intra_layer/
fully_connected.py, ``expert_mode=False``). In: inputs are exchanged for samples by an all-to-all over y, samples are
gathered over x. Out: samples are exchanged for outputs by an all-to-all over x; over y every rank keeps its own
samples, whose gradients it gathers in the backward pass. Layers are not transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.linear import Linear, as_linear, with_inputs, with_outputs
from clustersim.workloads.operators.operator import Exchange, Operator, ParameterTensor, Segment, matrix
from clustersim.workloads.operators.sharded import Grid, ShardedOperator, Side


def summa(x: Side, y: Side, depth: Side) -> Summa:
    """The square grid of *x* and *y*, *depth* times."""
    return Summa(columns=x, features=x, samples=(y, depth) if depth.ranks > 1 else (y,), rows=y, depth=depth)


@dataclass(frozen=True, kw_only=True)
class Summa(Grid):
    """*rows*: the side that cuts the rows of a matrix; *depth*: the side of further grids."""

    rows: Side
    depth: Side

    def first(self, product: Operator) -> Operator:
        """Inputs are cut as features are."""
        return self._product(with_inputs(as_linear(product), self.features.ranks))

    def second(self, product: Operator) -> Operator:
        """Outputs are cut as features are."""
        return self._product(with_outputs(as_linear(product), self.features.ranks))

    def lookup(self, embedding: Operator) -> Operator:
        """The blocks of the table pass by in as many steps as there are rows; each row finds some of its words."""
        assert isinstance(embedding, Elementwise)
        table, *others = embedding.tensors
        own = replace(embedding, elements=embedding.elements // self.features.ranks)
        block = table.count // self.features.ranks
        nbytes = float(block * BYTES[own.precision])
        tensors = replace(table, count=block), *self.of_features(others)
        steps = range(self.rows.ranks)
        found = tuple(("F", _weights("broadcast", nbytes, self.rows, step)) for step in steps)
        summed = tuple(("I", _weights("reduce", nbytes, self.rows, step)) for step in steps)
        over = tuple(("I", exchange) for exchange in over_depth(nbytes, self.depth))
        return ShardedOperator(own, tensors, found, (*summed, *over))

    def _product(self, block: Linear) -> SummaProduct:
        tensors: list[ParameterTensor] = []
        for outputs in block.splits or (block.outputs,):
            if not block.shared:
                tensors.append(matrix(outputs, block.inputs, hidden=block.hidden))
            if block.bias:
                tensors += self.summed([ParameterTensor(outputs)], *self.samples)
        return SummaProduct(block, tuple(tensors), self.columns, self.rows, self.depth)


@dataclass(frozen=True)
class SummaProduct(Operator):
    """The product of *block*, a rank's rows, inputs and outputs; its inputs lie over *x*, and its weights over *y* too.

    *parameters*: its tensors.
    """

    block: Linear
    parameters: tuple[ParameterTensor, ...]
    x: Side
    y: Side
    depth: Side

    @property
    def operation(self) -> Operation:
        """As the block."""
        return self.block.operation

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """A product of blocks in each step."""
        return self.block.forward(samples) * self.x.ranks

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """A product of blocks in each step, and the gradient of the bias."""
        product, *bias = self.block.backward_input(samples)
        return (*(product,) * self.x.ranks, *bias)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """A product of blocks in each step."""
        return self.block.backward_weights(samples) * self.x.ranks

    def kept_bytes(self, samples: int) -> float:
        """Its block of the input."""
        return self.block.kept_bytes(samples)

    def weight_bytes(self, samples: int) -> float:
        """Its blocks of the input and of the gradient of the output."""
        return self.block.weight_bytes(samples)

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """A segment for each step."""
        return tuple({"F": self._outputs, "I": self._inputs, "W": self._weights}[phase](samples))

    def _outputs(self, samples: int) -> Iterator[Segment]:
        for step in range(self.x.ranks):
            blocks = self._rows("broadcast", samples, step), self._weight("broadcast", step)
            yield Segment(self.block.forward(samples), before=blocks)

    def _inputs(self, samples: int) -> Iterator[Segment]:
        product, *bias = self.block.backward_input(samples)
        for step in range(self.x.ranks):
            last = bias if step == self.x.ranks - 1 else []
            before = (self._weight("broadcast", step),)
            yield Segment((product, *last), before=before, after=(self._rows("reduce", samples, step),))

    def _weights(self, samples: int) -> Iterator[Segment]:
        (product,) = self.block.backward_weights(samples)
        for step in range(self.x.ranks):
            last = over_depth(self._weight_bytes, self.depth) if step == self.x.ranks - 1 else ()
            before = (self._rows("broadcast", samples, step),)
            yield Segment((product,), before=before, after=(self._weight("reduce", step), *last))

    def _rows(self, kind: str, samples: int, step: int) -> Exchange:
        nbytes = samples * self.block.rows * self.block.inputs * BYTES[self.block.precision]
        return Exchange(kind, float(nbytes), self.x.over, root=step)

    def _weight(self, kind: str, step: int) -> Exchange:
        return _weights(kind, self._weight_bytes, self.y, step)

    @property
    def _weight_bytes(self) -> float:
        return float(self.block.inputs * self.block.outputs * BYTES[self.block.precision])


def over_depth(nbytes: float, depth: Side) -> tuple[Exchange, ...]:
    """The sum of the gradients of a block of weights over *depth*."""
    return (_weights("all_reduce", nbytes, depth),) if depth.ranks > 1 else ()


def _weights(kind: str, nbytes: float, side: Side, root: int = 0) -> Exchange:
    return Exchange(kind, nbytes, side.over, root=root, of_weights=True)


Exchanges = tuple[tuple[str, Exchange], ...]
"""(phase, exchange)."""


def agarwal(x: Side, y: Side, z: Side) -> Agarwal:
    """The grid of these sides."""
    return Agarwal(columns=x, features=y, samples=(z,), copies=y.ranks, equal=x.over if x.ranks > 1 else "", depth=z)


@dataclass(frozen=True, kw_only=True)
class Agarwal(Grid):
    """*depth*: the side over which weights lie in shards."""

    depth: Side

    def first(self, product: Operator) -> Operator:
        """Inputs are cut over y."""
        own = with_inputs(as_linear(product), self.features.ranks)
        return self._product(own, summing=self.features, giving=self.columns)

    def second(self, product: Operator) -> Operator:
        """Transposed: outputs are cut over y."""
        own = with_outputs(as_linear(product), self.features.ranks)
        return self._product(own, summing=self.columns, giving=self.features)

    def lookup(self, embedding: Operator) -> Operator:
        """Rows of the table are cut over x, features over y, and both are gathered over z; others' words give zero."""
        assert isinstance(embedding, Elementwise)
        own = replace(embedding, elements=embedding.elements // self.features.ranks)
        table, *others = embedding.tensors
        width, block = BYTES[own.precision], table.count // self.features.ranks
        gathered, scattered = weight_exchanges(block * width, self.depth)
        tensors = replace(table, count=ceil(block / self.depth.ranks)), *self.of_features(others)
        found = of_phases("F", self._sum(own.elements * width, self.columns))
        return ShardedOperator(own, tensors, of_phases("F", gathered), (*found, *of_phases("I", scattered)))

    def _product(self, own: Linear, summing: Side, giving: Side) -> ShardedOperator:
        """*own* with its outputs summed over *summing*, and the gradient of its inputs over *giving*."""
        width = BYTES[own.precision]
        gathered, scattered = weight_exchanges(own.inputs * own.outputs * width, self.depth)
        outputs = of_phases("F", self._sum(own.rows * own.outputs * width, summing))
        inputs = of_phases("I", self._sum(own.rows * own.inputs * width, giving))
        weights = of_phases("W", scattered)
        return ShardedOperator(
            own,
            self._shards(own),
            (*of_phases("F", gathered), *of_phases("I", gathered)),
            (*outputs, *inputs, *weights),
        )

    def _shards(self, own: Linear) -> tuple[ParameterTensor, ...]:
        """The weights in shards, the biases whole."""
        made: list[ParameterTensor] = []
        for outputs in own.splits or (own.outputs,):
            if not own.shared:
                count = ceil(outputs * own.inputs / self.depth.ranks)
                made.append(ParameterTensor(count, rows=outputs, hidden=own.hidden))
            if own.bias:
                made += self.summed([ParameterTensor(outputs)], self.depth)
        return tuple(made)

    def _sum(self, nbytes: float, side: Side) -> tuple[Exchange, ...]:
        return (Exchange("all_reduce", float(nbytes), side.over, divisible=True),) if side.ranks > 1 else ()


def weight_exchanges(nbytes: float, side: Side) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]]:
    """The all-gather of a block of weights over *side*, and the reduce-scatter of its gradient; none for one rank."""
    if side.ranks == 1:
        return (), ()
    gather, scatter = (
        Exchange(kind, float(nbytes), side.over, of_weights=True) for kind in ("all_gather", "reduce_scatter")
    )
    return (gather,), (scatter,)


def of_phases(phases: str, exchanges: tuple[Exchange, ...]) -> Exchanges:
    """Each of *exchanges* in each of *phases*."""
    return tuple((phase, exchange) for phase in phases for exchange in exchanges)


def replaced(x: Side, y: Side, z: Side) -> Replaced:
    """The grid of these sides."""
    return Replaced(columns=Side(""), features=Side(""), samples=(x, y, z), depth=z, x=x, y=y)


@dataclass(frozen=True, kw_only=True)
class Replaced(Agarwal):
    """*x* cuts the outputs of products and *y* their inputs."""

    x: Side
    y: Side

    def first(self, product: Operator) -> Operator:
        """A replaced layer."""
        return self._replaced(as_linear(product))

    def second(self, product: Operator) -> Operator:
        """A replaced layer too."""
        return self._replaced(as_linear(product))

    def lookup(self, embedding: Operator) -> Operator:
        """Every rank has the tables."""
        assert isinstance(embedding, Elementwise)
        return ShardedOperator(embedding, self.of_features(embedding.tensors))

    def _replaced(self, whole: Linear) -> ShardedOperator:
        x, y = self.x.ranks, self.y.ranks
        block = with_outputs(with_inputs(replace(whole, rows=whole.rows * x * y), y), x)
        width = BYTES[whole.precision]
        gathered, scattered = weight_exchanges(block.inputs * block.outputs * width, self.depth)
        taken, given = (float(whole.rows * y * features * width) for features in (whole.inputs, whole.outputs))
        inputs = block.rows * block.inputs * width
        before = (
            self._into_blocks(taken / y, inputs),
            of_phases("F", gathered),
            self._back(given),
            of_phases("I", gathered),
        )
        after = (
            of_phases("F", self._sum(block.rows * block.outputs * width, self.y)),
            of_phases("F", _exchange("all_to_all", given, self.x)),
            of_phases("I", self._sum(inputs, self.x)),
            of_phases("I", _exchange("all_to_all", taken, self.y)),
            of_phases("W", scattered),
        )
        return ShardedOperator(block, self._shards(block), sum(before, ()), sum(after, ()))

    def _into_blocks(self, own: float, inputs: float) -> Exchanges:
        """*own*: bytes of a rank's samples with all features; *inputs*: those of a block."""
        exchanged, gathered = _exchange("all_to_all", own, self.y), _exchange("all_gather", inputs, self.x)
        return of_phases("F", (*exchanged, *gathered))

    def _back(self, given: float) -> Exchanges:
        """The gradient of outputs, *given* bytes of the samples of all ranks of y."""
        gathered, exchanged = _exchange("all_gather", given, self.y), _exchange("all_to_all", given, self.x)
        return of_phases("I", (*gathered, *exchanged))


def _exchange(kind: str, nbytes: float, side: Side) -> tuple[Exchange, ...]:
    return (Exchange(kind, nbytes, side.over),) if side.ranks > 1 else ()
