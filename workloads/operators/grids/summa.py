"""Two-dimensional tensor parallelism: products by SUMMA on a square grid of ranks, and two and a half dimensions.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.linear import Linear, as_linear, with_inputs, with_outputs
from clustersim.workloads.operators.operator import Exchange, Operator, Segment
from clustersim.workloads.operators.parameter import ParameterTensor, matrix
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
