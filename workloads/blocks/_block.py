"""A block is a mixer or a feed-forward network: what stands in a layer between a norm and a residual sum.

Its file declares a subclass of `Block`. The fields are its keys in a scenario, below ``model.blocks``. Its operators
say what parameters and kernels it has, what it keeps for the backward pass, and how ranks share it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Section
from clustersim.workloads.operators.attentions.context_parallel import ALONE, ContextCut
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.low_precision import LowPrecision, scaled
from clustersim.workloads.operators.operator import Exchange, Fused, Operator
from clustersim.workloads.operators.sharded import WHOLE, Cut, ShardedOperator, column_parallel, second_parallel


@dataclass(frozen=True)
class HiddenStates:
    """What a block takes and gives: *rows* positions of a sample on one rank, *features* of each.

    *cut*: how tensor parallelism cuts the blocks, *context*: how context parallelism cuts the sequence; *rows* are
    those of one rank of *context*, and of all ranks of *cut*. *low*: linear maps run in 8 or 4 bits; None: they do not.
    *kept_share*: a product keeps one part in so many of an input that is gathered from the shards of the sequence.
    """

    rows: int
    features: int
    precision: str = "fp32"
    cut: Cut = WHOLE
    context: ContextCut = ALONE
    fused: Fused = True
    low: LowPrecision | None = None
    kept_share: int = 1

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return BYTES[self.precision]

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks that share the block."""
        return self.cut.ranks

    @property
    def whole_length(self) -> int:
        """Positions of a sequence, on all ranks that share it."""
        return self.rows * self.context.ranks

    def into(self, outputs: int, *, bias: bool = False, splits: tuple[int, ...] = ()) -> Operator:
        """The first product of a block, to *outputs* features of one rank, with its exchanges: it is cut by columns.

        *splits*: the outputs of each weight tensor, if there are several.
        """
        linear = Linear(
            self.rows, self.features, outputs, bias, self.precision, splits=splits, kept_share=self.kept_share
        )
        return column_parallel(scaled(linear, self.low, input_shards=self.cut.sequence_shards), self.cut)

    def out_of(self, inputs: int, *, bias: bool = False) -> Operator:
        """The last product of a block, from *inputs* features of one rank, with its exchanges: it is cut by rows."""
        linear = Linear(self.rows, inputs, self.features, bias, self.precision)
        return second_parallel(scaled(linear, self.low, gradient_shards=self.cut.sequence_shards), self.cut)


class Block(Section):
    """A block. Its keys are its fields, each with a default."""

    @abstractmethod
    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """The operators of one rank, from the normed *hidden* states to what the residual sum adds."""
        raise NotImplementedError

    def counts(self, features: int) -> Mapping[str, int]:
        """By name, the counts that tensor-parallel ranks must divide, of hidden states with *features*. Default: none.

        May raise `Fault` for a key that does not fit *features*.
        """
        return {}

    def context_fault(self, hidden: HiddenStates, context: ContextCut) -> str:
        """Why the block cannot be cut over *context*, "" if it can. *hidden*: before the cut. Default: it cannot."""
        return f"{type(self).__name__} is not made for it"


def heads_for_positions(
    inner: tuple[Operator, ...], given: tuple[int, ...], returned: tuple[int, ...], hidden: HiddenStates
) -> tuple[Operator, ...]:
    """*inner*, which needs all positions of some heads, with all-to-alls of tensors of *given* and *returned* features.

    Features are those of all heads of a tensor-parallel rank. Gradients go the other way.
    """
    context = hidden.context
    if context.ranks == 1:
        return inner

    def exchanges(features: tuple[int, ...], phase: str) -> tuple[tuple[str, Exchange], ...]:
        sizes = (float(hidden.rows * one * hidden.width) for one in features)
        return tuple((phase, Exchange("all_to_all", size, context.over)) for size in sizes)

    first, *between, last = inner
    return (
        ShardedOperator(first, first.tensors, before=exchanges(given, "F"), after=exchanges(given, "I")),
        *between,
        ShardedOperator(last, last.tensors, before=exchanges(returned, "I"), after=exchanges(returned, "F")),
    )
