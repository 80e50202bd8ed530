"""AxoNN's ``auto_parallelize`` replaces the linear layers of a model, and leaves all others as they are.

Between two linear layers each rank has samples of its own, with all features, as in data parallelism. Each product
begins and ends with exchanges that make the grid's blocks of these samples and undo it (axonn/intra_layer/
fully_connected.py, ``expert_mode=False``). In: inputs are exchanged for samples by an all-to-all over y, samples are
gathered over x. Out: samples are exchanged for outputs by an all-to-all over x; over y every rank keeps its own
samples, whose gradients it gathers in the backward pass. Layers are not transposed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.kernel import BYTES
from workloads.operators.elementwise import Elementwise
from workloads.operators.grids.agarwal import Agarwal, Exchanges, of_phases, weight_exchanges
from workloads.operators.grids.grid import Side
from workloads.operators.grids.products import as_linear, with_inputs, with_outputs
from workloads.operators.linear import Linear
from workloads.operators.operator import Operator
from workloads.operators.segment import Exchange
from workloads.operators.sharded import ShardedOperator


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
