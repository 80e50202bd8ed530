"""Core attention: queries times keys, softmax, times values; by several kernels (unfused) or by one (flash).

Documents that are packed into a sequence attend within themselves: Llama 3 masks so (arXiv:2407.21783, section 3.2),
torchtitan with ``attn_mask_type: block_causal`` and Megatron-LM with ``--reset-attention-mask``; by default the latter
two attend across documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from typing import Literal

from clustersim.simulator.hardware.kernel import BYTES, EXECUTED, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.attentions.indexer import Index
from clustersim.workloads.operators.attentions.torch_softmax import OF_SOFTMAX, SOFTMAX, torch_softmax
from clustersim.workloads.operators.elementwise import TorchOperator
from clustersim.workloads.operators.operator import Operator

Range = tuple[int, int]
"""The first position, and the one after the last."""


@lru_cache(maxsize=64)
def packed(lengths: tuple[int, ...], total: int) -> tuple[Range, ...]:
    """Documents of *lengths*, in turn, in a sequence of *total* positions; the last one is cut.

    >>> packed((4, 2), 9)
    ((0, 4), (4, 6), (6, 9))
    """
    found: list[Range] = []
    begin = 0
    for length in cycle(lengths):
        found.append((begin, min(begin + length, total)))
        begin += length
        if begin >= total:
            return tuple(found)
    return ()


@lru_cache(maxsize=65536)
def scores(lengths: tuple[int, ...], total: int, rows: Range, keys: Range, *, causal: bool) -> float:
    """The scores of queries *rows* against *keys* in a `packed` sequence; no *lengths*: it is one document.

    *rows* and *keys* are the same range or do not overlap. Under a *causal* mask a position counts half of the score
    with itself.

    >>> scores((4, 2), 9, (0, 9), (0, 9), causal=False)
    29.0
    """
    found = 0
    for document in packed(lengths or (total,), total):
        queries, others = _overlap(document, rows), _overlap(document, keys)
        if not causal or keys[1] <= rows[0]:
            found += 2 * queries * others
        elif rows == keys:
            found += queries * others
    return found / 2


def _overlap(one: Range, other: Range) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


TILE = 64
"""Rows and columns of a tile of fused attention: 64 or 128 (Dao 2023, arXiv:2307.08691, section 3.3); the smaller."""

FP32 = 4
"""Bytes of the statistics (log-sum-exp) that flash attention keeps for each row of scores."""


SCALED_IN_FP32 = ("scale", "mask", "softmax")
"""What runs in fp32 where the fused softmax does not take the scores (Megatron-LM,
FusedScaleMaskSoftmax.forward_torch_softmax)."""


@dataclass(frozen=True)
class CoreAttention(Operator):
    """*heads* query and *key_value_heads* key and value heads of *head_size*, over *length* positions.

    The scores are scaled, masked, normalised and, with *drop*, dropped out. If *fused*, one kernel does all but the
    dropout; else torch's operators do, one by one, those of *in_fp32* in fp32 (`torch_softmax`). The fused kernel takes
    heads x samples in multiples of *group*; otherwise scores of 16 bits are `SCALED_IN_FP32`. Without *masks* no scores
    are hidden, neither later ones nor those of a text's padding, as in models of images.
    """

    length: int
    heads: int
    key_value_heads: int
    head_size: int
    drop: bool = True
    fused: bool = True
    precision: str = "fp32"
    group: int = 1
    in_fp32: tuple[str, ...] = ()
    masks: bool = True

    @property
    def operation(self) -> Operation:
        """Beside products and dropout there is the softmax."""
        return SOFTMAX

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Scores, softmax, dropout, context."""
        return (*self._scores(samples), *self._between(samples, 0), *self._context(samples))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradients of the operands of both products (four products), and of the kernels between them."""
        into_scores, into_operand = self._scores(samples), self._context(samples)
        return (*into_scores, *into_operand, *self._between(samples, 1), *into_operand, *into_operand)

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, values and `recomputable_bytes`."""
        rows = self.heads + 2 * self.key_value_heads
        inputs = samples * self.length * self.head_size * rows * BYTES[self.precision]
        return inputs + self.recomputable_bytes(samples)

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """All of it (Korthikanti et al. 2022, arXiv:2205.05198, section 5)."""
        return self.forward(samples)

    def recomputable_bytes(self, samples: int) -> float:
        """Softmax output, dropout mask and dropout output: 5 a s^2 b in 16 bits."""
        width = BYTES[self.precision]
        soft = max(width, FP32) if "softmax" in self._in_fp32(samples) else width
        # the product takes what dropout makes, or the probabilities: those of 16 bits if the softmax is in fp32
        after = width + 1.0 if self.drop else float(width) if soft > width else 0.0
        return samples * self.heads * self.length**2 * (soft + after)

    def _in_fp32(self, samples: int) -> tuple[str, ...]:
        """What runs in fp32 between the products; nothing if the softmax is fused."""
        if self.fused:
            return SCALED_IN_FP32 if self._falls_back(samples) else ()
        return self.in_fp32

    def _falls_back(self, samples: int) -> bool:
        """True if the fused softmax does not take the scores; those of fp32 it takes."""
        return samples * self.heads % self.group != 0 and BYTES[self.precision] < FP32

    def _between(self, samples: int, backward: int) -> tuple[Kernel, ...]:
        """Scale, mask, softmax and dropout, or their gradients."""
        scores = self._scored(samples)
        return tuple(
            memory_bound(
                scores * each,
                precision=self.precision,
                launches=one.launches[backward],
                accesses=scores * one.accesses[backward],
                operation=one.operation,
            )
            for one in self._operators(samples)
            if (each := (one.forwards, one.backwards)[backward])
        )

    def _operators(self, samples: int) -> Iterable[TorchOperator]:
        if not self.fused or self._falls_back(samples):
            return torch_softmax(self.precision, self._in_fp32(samples), masks=self.masks, drop=self.drop)
        width = BYTES[self.precision]
        dropped = TorchOperator(OF_SOFTMAX["dropout"], 2 * width + 1, 2 * width + 1)
        return (TorchOperator(SOFTMAX, 2 * width, 3 * width), *(dropped,) * self.drop)

    def _scores(self, samples: int) -> tuple[Kernel, ...]:
        return (self._product(samples, self.length, self.head_size),)

    def _context(self, samples: int) -> tuple[Kernel, ...]:
        return (self._product(samples, self.head_size, self.length),)

    def _product(self, samples: int, n: int, k: int) -> Kernel:
        return matmul(self.length, n, k, batch=samples * self.heads, precision=self.precision)

    def _scored(self, samples: int) -> int:
        """The number of scores."""
        return samples * self.heads * self.length**2


@dataclass(frozen=True)
class FlashAttention(CoreAttention):
    """Core attention tile by tile; the scores are never written to memory (Dao 2023, arXiv:2307.08691).

    The FLOPs are model FLOPs: the full square, by convention. The shape is what runs: two products forward and five
    backward, as the scores are recomputed. A *causal* mask leaves out half of the scores, but tiles on the diagonal are
    computed whole, so long sequences are faster. With a *window* w of s positions a position attends to itself and the
    w - 1 before it (Mistral 7B, arXiv:2310.06825, section 2), or to w around it if not causal (Longformer,
    arXiv:2004.05150, section 3.1). Tiles outside are left out, and the FLOPs are the same share of the square. So they
    are with *documents*, the lengths of those that are packed into a sequence in turn; none: one document. Values have
    *value_size* features, as in latent attention; 0: as many as queries and keys.
    """

    causal: bool = True
    window: int = 0
    documents: tuple[int, ...] = ()
    value_size: int = 0

    @property
    def of_value(self) -> int:
        """Features of a value."""
        return self.value_size or self.head_size

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, values and `recomputable_bytes`."""
        features = self.heads * self.head_size + self.key_value_heads * (self.head_size + self.of_value)
        return samples * self.length * features * BYTES[self.precision] + self.recomputable_bytes(samples)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """One kernel with two products. It reads queries, keys and values, and writes the output and its statistics."""
        return (self._kernel(samples, "forward"),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """One kernel with five products. It also reads the output and its gradient, and writes three gradients."""
        return (self._kernel(samples, "backward"),)

    def recomputable_bytes(self, samples: int) -> float:
        """The statistics only: flash attention recomputes the rest in any case."""
        return float(samples * self.heads * self.length * FP32)

    def block(
        self, samples: int, which: Literal["forward", "backward"], rows: int, keys: int, computed: int, counted: float
    ) -> Kernel:
        """One kernel of *rows* queries against *keys* keys.

        It computes *computed* scores a row, and *counted* of them are model FLOPs. It passes over the tensors of query
        size and of key and value size: twice forward, four times backward. Forward one product has the features of
        queries and one those of values, backward three and two.
        """
        both = self.head_size + self.of_value
        products, passes = {"forward": (2, 1), "backward": (4, 2)}[which]
        flops = products * samples * self.heads * rows * counted * both
        tensors = passes * (self.heads * rows + self.key_value_heads * keys) * both * BYTES[self.precision]
        nbytes = samples * (tensors + rows * self.heads * FP32)
        shape = (EXECUTED[which] * samples * self.heads, rows, computed, self.head_size)
        if self.value_size:
            depth = both if which == "forward" else 3 * self.head_size + 2 * self.value_size
            shape = (samples * self.heads, rows, computed, depth)
        return Kernel(flops, nbytes, shape, self.precision, attention=which)

    def _kernel(self, samples: int, which: Literal["forward", "backward"]) -> Kernel:
        scores = self._scores_of_a_row()
        whole = self.length / 2 if self.causal else self.length
        counted = self.length * scores / whole if self._windowed or self.documents else self.length
        return self.block(samples, which, self.length, self.length, self._columns(scores), counted)

    @property
    def _windowed(self) -> bool:
        return 0 < self.window < (self.length if self.causal else 2 * self.length)

    def _columns(self, scores: float) -> int:
        """Columns that the tiles of a row compute for *scores*: half a tile more at each edge that cuts tiles."""
        edges = 2 if self._windowed else 1 if self.causal else 2 if self.documents else 0
        return min(self.length, int(scores) + edges * TILE // 2)

    def _scores_of_a_row(self) -> float:
        """Scores of a row, the mean over the rows: those near an end of the sequence have fewer."""
        if self.documents:
            every = 0, self.length
            return scores(self.documents, self.length, every, every, causal=self.causal) / self.length
        if not self._windowed:
            return max(1, self.length // 2) if self.causal else self.length
        cut = self.window / (2 if self.causal else 4)
        return max(1, round(self.window * (1 - cut / self.length)))


@dataclass(frozen=True, slots=True)
class Latent:
    """Features of the vectors from which queries (*queries*, 0: from the hidden state) and keys and values are made.

    Of each head: *plain* and *rotated* features of queries and keys, *value* features of values. The rotated part of a
    key is one for all heads (DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1). *index*: what chooses the
    tokens to which a position attends; None: it attends to all before it.
    """

    queries: int
    keys_values: int
    plain: int
    rotated: int
    value: int
    index: Index | None = None

    def of_layer(self, number: int) -> Latent:
        """Those of layer *number*, which may have an indexer of its own or not."""
        return replace(self, index=self.index.of_layer(number)) if self.index else self

    @property
    def query(self) -> int:
        """Features of a query and of a key of one head."""
        return self.plain + self.rotated


@dataclass(frozen=True, slots=True)
class Sizes:
    """Core attention of one rank: *heads* of *head_size* over *length* positions.

    *masked*: a position sees those before it only. *drop*: probabilities are dropped out. *fused*: so is the softmax of
    several kernels. *over*, *ranks*: the tensor-parallel ranks that have other heads of the same positions.
    """

    length: int
    heads: int
    key_value_heads: int
    head_size: int
    masked: bool = False
    drop: bool = False
    fused: bool = True
    precision: str = "fp32"
    over: str = ""
    ranks: int = 1

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return BYTES[self.precision]

    @property
    def inputs(self) -> float:
        """Bytes of queries, keys and values of a sample."""
        return float(self.length * self.head_size * (self.heads + 2 * self.key_value_heads) * self.width)


class AttentionKind(ABC):
    """A kind with its own parameters. *name* is the word in a scenario."""

    name: str
    masks = True
    """Whether it can hide later positions from a position."""

    @abstractmethod
    def operators(self, sizes: Sizes) -> tuple[Operator, ...]:
        """The operators between the product that makes queries, keys and values and that which makes the output."""

    def __str__(self) -> str:
        return self.name
