"""Core attention: queries times keys, softmax, times values; by several kernels (unfused) or by one (flash)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simulator.kernel import BYTES, EXECUTED, Kernel, matmul, memory_bound
from simulator.operation import Operation
from workloads.operators.documents import scores
from workloads.operators.operator import Operator

ATTENTIONS = ["unfused", "flash"]
"""The kinds of core attention."""

TILE = 64
"""Rows and columns of a tile of fused attention: 64 or 128 (Dao 2023, arXiv:2307.08691, section 3.3); the smaller."""

FP32 = 4
"""Bytes of the statistics (log-sum-exp) that flash attention keeps for each row of scores."""


SOFTMAX = Operation("softmax", "normalisation", "attention")
OF_SOFTMAX = {name: Operation(name, SOFTMAX.kind, SOFTMAX.operator) for name in ("scale", "mask", "cast", "dropout")}
"""Operations over the scores. They count as normalisation too, as part of the softmax (Ivanov et al. 2021,
arXiv:2007.00072, table 1)."""


@dataclass(frozen=True)
class CoreAttention(Operator):
    """*heads* query and *key_value_heads* key and value heads of *head_size*, over *length* positions.

    The scores are scaled, masked, normalised and, with *drop*, dropped out. If *fused*, one kernel does all but the
    dropout; else there is one kernel for each. The fused kernel takes heads x samples in multiples of *group*;
    otherwise scores of 16 bits are normalised in fp32, one kernel each, with casts (Megatron-LM,
    FusedScaleMaskSoftmax.forward_torch_softmax). *wide*: so are those of a softmax that is not fused.
    """

    length: int
    heads: int
    key_value_heads: int
    head_size: int
    drop: bool = True
    fused: bool = True
    precision: str = "fp32"
    group: int = 1
    wide: bool = False

    @property
    def operation(self) -> Operation:
        """Beside products and dropout there is the softmax."""
        return SOFTMAX

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Scores, softmax, dropout, context."""
        soft = self._softmax(samples, 2, 6)
        drop = self._dropout(samples) if self.drop else ()
        return (*self._scores(samples), *soft, *drop, *self._context(samples))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradients of the operands of both products (four products), and of the kernels between them."""
        soft = self._softmax(samples, 3, 7)
        drop = self._dropout(samples) if self.drop else ()
        into_scores, into_operand = self._scores(samples), self._context(samples)
        return (*into_scores, *into_operand, *drop, *soft, *into_operand, *into_operand)

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
        width, soft = BYTES[self.precision], FP32 if self._falls_back(samples) else BYTES[self.precision]
        # the product takes what dropout makes, or the probabilities: those of 16 bits if the softmax is in fp32
        after = width + 1.0 if self.drop else float(width) if self._falls_back(samples) else 0.0
        return samples * self.heads * self.length**2 * (soft + after)

    def _falls_back(self, samples: int) -> bool:
        """True if scores of 16 bits are normalised in fp32, by operators of torch."""
        if BYTES[self.precision] >= FP32:
            return False
        return samples * self.heads % self.group != 0 if self.fused else self.wide

    def _softmax(self, samples: int, fused: int, apart: int) -> tuple[Kernel, ...]:
        """Scale, mask and softmax: *fused* passes over the scores by one kernel, or *apart* passes by three.

        The fallback to fp32 has two more kernels, the casts.
        """
        width = BYTES[self.precision]
        if self.fused and not self._falls_back(samples):
            return (self._over_scores(samples, fused * width, 1),)
        wide = FP32 if self._falls_back(samples) else width
        scale, mask = (self._elementary(samples, name, 2 * wide, 1) for name in ("scale", "mask"))
        soft = self._over_scores(samples, (apart - 4) * wide, 1)
        casts = (self._elementary(samples, "cast", 2 * (width + FP32), 2),) if wide > width else ()
        return (scale, mask, soft, *casts)

    def _scores(self, samples: int) -> tuple[Kernel, ...]:
        return (self._product(samples, self.length, self.head_size),)

    def _context(self, samples: int) -> tuple[Kernel, ...]:
        return (self._product(samples, self.head_size, self.length),)

    def _product(self, samples: int, n: int, k: int) -> Kernel:
        return matmul(self.length, n, k, batch=samples * self.heads, precision=self.precision)

    def _dropout(self, samples: int) -> tuple[Kernel, ...]:
        return (self._elementary(samples, "dropout", 2 * BYTES[self.precision] + 1, 1),)

    def _elementary(self, samples: int, name: str, each: float, launches: int) -> Kernel:
        """The operation *name* over the scores, part of the scaled, masked softmax with dropout."""
        return replace(self._over_scores(samples, each, launches), operation=OF_SOFTMAX[name])

    def _over_scores(self, samples: int, each: float, launches: int) -> Kernel:
        nbytes = samples * self.heads * self.length**2 * each
        return memory_bound(nbytes, precision=self.precision, launches=launches)


@dataclass(frozen=True)
class FlashAttention(CoreAttention):
    """Core attention tile by tile; the scores are never written to memory (Dao 2023, arXiv:2307.08691).

    The FLOPs are model FLOPs: the full square, by convention. The shape is what runs: two products forward and five
    backward, as the scores are recomputed. A *causal* mask leaves out half of the scores, but tiles on the diagonal are
    computed whole, so long sequences are faster. With a *window* w of s positions a position attends to itself and the
    w - 1 before it (Mistral 7B, arXiv:2310.06825, section 2), or to w around it if not causal (Longformer,
    arXiv:2004.05150, section 3.1). Tiles outside are left out, and the FLOPs are the same share of the square. So they
    are with *documents*, the lengths of those that are packed into a sequence in turn; none: one document.
    """

    causal: bool = True
    window: int = 0
    documents: tuple[int, ...] = ()

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
        size and of key and value size: twice forward, four times backward.
        """
        products, passes = {"forward": (2, 2), "backward": (4, 4)}[which]
        flops = products * 2 * samples * self.heads * rows * counted * self.head_size
        tensors = passes * (self.heads * rows + self.key_value_heads * keys) * self.head_size * BYTES[self.precision]
        nbytes = samples * (tensors + rows * self.heads * FP32)
        shape = (EXECUTED[which] * samples * self.heads, rows, computed, self.head_size)
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
