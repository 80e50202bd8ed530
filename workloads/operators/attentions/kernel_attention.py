"""Attention by a kernel of feature maps in place of a softmax: phi(Q) (phi(K)^T V), linear in the length of a sequence.

Katharopoulos et al. 2020, "Transformers are RNNs" (arXiv:2006.16236): phi(x) = elu(x) + 1, as many features as a head
has. Choromanski et al. 2021, "Rethinking Attention with Performers" (arXiv:2009.14794): FAVOR+ estimates the softmax by
m positive random features, exp(w x - |x|^2 / 2) with fixed w, so a product comes before the kernels over features
(google-research/performer, fast_attention.py, ``softmax_kernel_transformation``).

Without a mask a head has one state phi(K)^T V of features x head size. Under a causal mask each position needs the
state of those before it: the sequence is cut into chunks, as for all linear recurrences (flash-linear-attention,
fla/ops/linear_attn/chunk.py). The backward pass computes maps' products and states again. Keys of grouped heads are
repeated.

Ranks that share a sequence exchange states, whose size does not depend on its length. Without a mask they are summed.
Under a causal mask they are gathered (LASP-2, arXiv:2502.07563), or pass from rank to rank, first beside the products
within chunks (LASP, arXiv:2404.02882). With ``cp_layout: zigzag`` a rank has two states, of its early and late chunk.
"""

from __future__ import annotations

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.attentions.context_parallel import ALONE, ContextCut
from clustersim.workloads.operators.attentions.core_attention import AttentionKind, Sizes
from clustersim.workloads.operators.operator import SHIFT, Exchange, Operator, Segment
from clustersim.workloads.operators.recurrent import ChunkedScan

FP32 = 4
"""Bytes of a denominator."""

FEATURES = Operation("feature map and denominator", "elementwise", "attention")


@dataclass(frozen=True)
class KernelAttention(AttentionKind):
    """*features* of the map, 0: those of a head; *random*: by a product with fixed random vectors (Performer)."""

    features: int = 0
    random: bool = False
    chunk: int = 64

    @property
    def name(self) -> str:  # type: ignore[override]  # a class variable of other kinds
        """The word in a scenario."""
        return "performer" if self.random else "linear"

    def operators(self, sizes: Sizes, context: ContextCut = ALONE) -> tuple[Operator, ...]:
        """One operator."""
        return (
            LinearAttention(
                sizes.length,
                sizes.heads,
                self.features or sizes.head_size,
                sizes.head_size,
                self.chunk,
                sizes.precision,
                key_value_heads=sizes.key_value_heads,
                causal=sizes.masked,
                random=self.random,
                context=context,
            ),
        )


@dataclass(frozen=True)
class LinearAttention(ChunkedScan):
    """Attention of one rank; *key* features, *value* numbers of a query, a key and a value of a head."""

    key_value_heads: int = 1
    causal: bool = True
    random: bool = False
    context: ContextCut = ALONE

    @property
    def operation(self) -> Operation:
        """Beside its products there are feature maps and denominators."""
        return FEATURES

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of all segments."""
        return tuple(kernel for segment in self._passes("F", samples) for kernel in segment.kernels)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of all segments."""
        return tuple(kernel for segment in self._passes("I", samples) for kernel in segment.kernels)

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """States, their exchange, and what needs the states of other ranks."""
        if phase == "W":
            return (Segment(()),)
        return tuple(
            Segment(self.named(one.kernels), one.before, one.within, one.after) for one in self._passes(phase, samples)
        )

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, values and `recomputable_bytes`."""
        rows = self.heads + 2 * self.key_value_heads
        return samples * self.length * self.value * rows * BYTES[self.precision] + self.recomputable_bytes(samples)

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """All of it."""
        return self.forward(samples)

    def recomputable_bytes(self, samples: int) -> float:
        """The features of queries and keys, and a denominator for each row."""
        features = self.bytes(samples)[0]
        return 2 * features + samples * self.heads * self.length * FP32

    def transient_bytes(self, phase: str, samples: int) -> float:
        """The states of all chunks, or the one state; backward, their gradients too."""
        states = self.bytes(samples)[3] if self.causal else self._state(samples)
        return states * (1 if phase == "F" else 2)

    def _passes(self, phase: str, samples: int) -> tuple[Segment, ...]:
        made, within, across = self._forward(samples) if phase == "F" else self._backward(samples)
        first, later = Segment(made), Segment(across)
        alone = self.context.ranks == 1
        if alone or not self.causal:
            summed = () if alone else (Exchange("all_reduce", self._state(samples), self.context.over),)
            return Segment(made, after=summed), Segment((*within, *across))
        beside, hops = self._exchanges(phase, samples)
        return first, Segment(within, within=(beside,)), *(Segment((), within=(hop,)) for hop in hops), later

    def _exchanges(self, phase: str, samples: int) -> tuple[Exchange, tuple[Exchange, ...]]:
        """The exchange of states beside the products within chunks, and those after it."""
        context = self.context
        own = self._state(samples) * (2 if context.zigzag and context.method != "ulysses" else 1)
        if context.method == "all_gather":
            return Exchange("all_gather", context.ranks * own, context.over), ()
        hop = Exchange(SHIFT, own, context.over, distance=1 if phase == "F" else -1)
        return hop, (hop,) * (context.ranks - 2)

    def _state(self, samples: int) -> float:
        """Bytes of a state of each head, with the sum of its keys."""
        return float(samples * self.heads * self.key * (self.value + 1) * BYTES[self.precision])

    def _forward(self, samples: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], tuple[Kernel, ...]]:
        """What makes states, the products within chunks, and the products with states."""
        features, values, square, states = self.bytes(samples)
        maps = self._maps(samples, backward=False)
        # a denominator: features of queries, the sum of keys; the output is read and written
        divided = self.memory(2 * features + 2 * values, 2)
        if not self.causal:
            state = self._whole(samples, features + values)
            return (*maps, state), (), (self._rows(samples, features + values), divided)
        within = (
            self.squares(samples, self.key, 2 * features + square),
            self.squares(samples, self.value, square + 2 * values),
        )
        made = self.states(samples, features + values + states, counts=1, runs=1)
        return (*maps, made), within, (self.chunks(samples, features + values + states), divided)

    def _backward(self, samples: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], tuple[Kernel, ...]]:
        """Two gradients of each product; scores within chunks and states again; gradients of maps and denominators."""
        features, values, square, states = self.bytes(samples)
        maps = self._maps(samples, backward=True)
        divided = self.memory(4 * features + 3 * values, 3)
        if not self.causal:
            state = self._whole(samples, features + values)
            rows = (self._rows(samples, features + values),) * 3
            return (divided, state), (), (*rows, *maps)
        within = (
            # of features of queries and keys, and the scores again
            self.squares(samples, self.key, 5 * features + 3 * square, counts=2, runs=3),
            # of scores and values
            self.squares(samples, self.value, 4 * values + 2 * square, counts=2, runs=2),
        )
        made = self.states(samples, 2 * (features + values + states), counts=1, runs=2)
        return (divided, made), within, (self.chunks(samples, 3 * (features + values + states), counts=3), *maps)

    def _maps(self, samples: int, *, backward: bool) -> tuple[Kernel, ...]:
        """Features of queries and of keys, or the gradients of queries and keys."""
        features, values, _, _ = self.bytes(samples)
        if not self.random:
            return (self.memory((2 * features + values if backward else features + values) * 2, 2),)
        rows = samples * self.heads * self.length
        m, n = (self.value, self.key) if backward else (self.key, self.value)
        product = matmul(rows, m, n, precision=self.precision)
        # products are read for their maximum and once more; backward features, their gradients and products' gradients
        return (product, product, self.memory(2 * (3 * features + values), 6))

    def _whole(self, samples: int, nbytes: float) -> Kernel:
        """A product of features x value x position, for each head."""
        return self.product((samples * self.heads, self.key, self.value, self.length), nbytes, 1, 1)

    def _rows(self, samples: int, nbytes: float) -> Kernel:
        """A product of positions with the state, for each head."""
        return self.product((samples * self.heads, self.length, self.value, self.key), nbytes, 1, 1)
