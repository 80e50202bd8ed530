"""The lightning indexer: a small attention whose scores say which tokens each position attends to.

DeepSeek-AI 2025, "DeepSeek-V3.2" (section 2.1): I(t, s) = sum over heads j of w(t, j) ReLU(q(t, j) k(s)), with one
key for all heads; a position attends to the *topk* tokens of the largest I. The indexer's input is detached: its
parameters get their gradient from a loss of their own, the divergence of I from what attention gives the chosen tokens,
summed over its heads. GLM-5 has the same; GLM-5.2 lets three of four layers take the choice of the layer before.

Every tensor-parallel rank computes the whole indexer, and ranks add up the probabilities of their heads (Megatron-LM,
core/transformer/experimental_attention_variant/dsa.py, ``compute_dsa_indexer_loss``). Ranks that share a sequence
gather its keys.
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import Operator

FP32, POSITION = 4, 4
"""Bytes of a score, and of the position of a chosen token, an int32."""

SELECTION = Operation("choice of tokens", "elementwise", "indexer")

READS = 2
"""Passes of a radix selection over the scores of a row: a histogram, and the choice (torch, ATen, ``radixSelect``)."""


@dataclass(frozen=True, slots=True)
class Index:
    """An indexer of *heads* of *head_size* that chooses *topk* tokens, in *blocks* of so many positions.

    *chooses*: the layer has it; else the tokens are those of the layer before. *pattern*: 1 for a layer that has it,
    repeated over the layers.
    """

    heads: int
    head_size: int
    topk: int
    chooses: bool = True
    pattern: tuple[int, ...] = (1,)
    block: int = 1

    def of_layer(self, number: int) -> Index:
        """That of layer *number*."""
        return replace(self, chooses=bool(self.pattern[number % len(self.pattern)]))

    def keys(self, length: int) -> int:
        """The mean over the rows of a sequence of *length* of the tokens to which one attends: those before, or *topk*.

        >>> Index(64, 128, 2048).keys(2048), Index(64, 128, 2048).keys(131072)
        (1024, 2032)
        """
        chosen = min(self.topk, length)
        return max(1, round(chosen * (1 - chosen / (2 * length))))


@dataclass(frozen=True)
class DetachedLinear(Linear):
    """A product of an input that gets no gradient; others keep the input."""

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """None."""
        return ()


@dataclass(frozen=True)
class Selection(Operator):
    """The scores of *rows* positions against all *length* of a sequence, and the choice of tokens.

    Model FLOPs count the whole square, as for fused attention; half of it runs. *copies*: ranks that make the same.
    """

    index: Index
    rows: int
    length: int
    precision: str = "fp32"
    copies: int = 1

    @property
    def operation(self) -> Operation:
        """Beside the products, tokens are chosen."""
        return SELECTION

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Scores, summed over heads as they are made, and the choice."""
        index, rows = self.index, samples * self.rows
        before = max(1, self.length // 2)
        made = matmul(rows, before, index.head_size, batch=index.heads, precision=self.precision)
        width = BYTES[self.precision]
        operands = (
            rows * (index.heads * index.head_size + index.heads) + samples * self.length * index.head_size
        ) * width
        written = float(rows * before * FP32 / index.block)
        flops = 2.0 * rows * self.length * index.heads * index.head_size
        scored = Kernel(flops, operands + written, made.shape, self.precision, aligned=made.aligned, copies=self.copies)
        return scored, memory_bound(READS * written + rows * self._chosen * POSITION, launches=READS)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """Scores of the chosen tokens again, and the gradients of queries and keys."""
        index, keys = self.index, self.index.keys(self.length)
        made = matmul(index.heads, keys, index.head_size, batch=3 * samples * self.rows, precision=self.precision)
        each = 2 * index.heads * index.head_size + 2 * keys * index.head_size
        scores = 2.0 * samples * self.rows * keys * FP32
        moved = samples * self.rows * each * BYTES[self.precision] + scores
        # two products are gradients; the scores are computed again
        flops = 4.0 * samples * self.rows * keys * index.heads * index.head_size
        return (Kernel(flops, moved, made.shape, self.precision, aligned=made.aligned, copies=self.copies),)

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, weights, and the positions of the chosen tokens."""
        index = self.index
        features = (index.heads + 1) * index.head_size + index.heads
        return samples * self.rows * (features * BYTES[self.precision] + float(self._chosen * POSITION))

    @property
    def _chosen(self) -> int:
        return -(-min(self.index.topk, self.length) // self.index.block)


@dataclass(frozen=True)
class IndexLoss(Operator):
    """The divergence of the scores from what *heads* of *query* features attend to, among the chosen tokens.

    The probabilities are computed again from the statistics that attention keeps, and summed over heads.
    """

    index: Index
    rows: int
    length: int
    heads: int
    query: int
    precision: str = "fp32"

    @property
    def operation(self) -> Operation:
        """A loss."""
        return Operation("loss", "normalisation", "indexer")

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The product of queries and keys again, and the divergence. It serves no result, so no model FLOPs count."""
        rows, keys = samples * self.rows, self.index.keys(self.length)
        made = matmul(self.heads, keys, self.query, batch=rows, precision=self.precision)
        moved = rows * (self.heads + keys) * self.query * BYTES[self.precision] + float(rows * keys * FP32)
        target = Kernel(0.0, moved, made.shape, self.precision, aligned=made.aligned)
        return target, memory_bound(2.0 * rows * keys * FP32)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradient of each score."""
        return (memory_bound(3.0 * samples * self.rows * self.index.keys(self.length) * FP32),)

    def kept_bytes(self, samples: int) -> float:
        """Both distributions over the chosen tokens."""
        return 2.0 * samples * self.rows * self.index.keys(self.length) * FP32
