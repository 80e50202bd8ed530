"""The router scores all experts for each token and chooses some; tokens are then copied into the order of experts."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel, memory_bound
from workloads.operators.linear import Linear

SCORE_BYTES = 4
"""Bytes of a score: the softmax or sigmoid is in fp32 (Megatron-LM, core/transformer/moe/router.py)."""

CHOICE = 4
"""Passes over the scores, and kernels, of a choice: softmax, top-k, and two scatters into a dense map (Megatron-LM,
core/transformer/moe/moe_utils.py, ``topk_softmax_with_capacity``). The backward pass has as many."""

AUX_LOSS = 3
"""Further ones of the loss for equal loads: a sum over tokens, a product, a sum (same file,
``switch_load_balancing_loss_func``; Fedus et al. 2022, arXiv:2101.03961, equation 4)."""


@dataclass(frozen=True)
class Router:
    """Scores of *experts* experts by the *linear* map, of which *topk* are chosen; *aux_loss*: a loss is computed."""

    linear: Linear
    topk: int
    aux_loss: bool

    @property
    def experts(self) -> int:
        """How many there are."""
        return self.linear.outputs

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The scores, and the choice."""
        return (*self.linear.forward(samples), *self._choice(samples))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradients of the scores and of the tokens."""
        return (*self._choice(samples), *self.linear.backward_input(samples))

    def kept_bytes(self, samples: int) -> float:
        """The probabilities, and the map of the choice, a byte each; the input belongs to all parts of the layer."""
        return samples * self.linear.rows * self.experts * (SCORE_BYTES + 1.0)

    def _choice(self, samples: int) -> tuple[Kernel, ...]:
        passes = CHOICE + (AUX_LOSS if self.aux_loss else 0)
        nbytes = samples * self.linear.rows * self.experts * SCORE_BYTES * passes
        return (memory_bound(nbytes, precision=self.linear.precision, launches=passes),)


def permuted(tokens: float, copies: float, width: float, precision: str) -> Kernel:
    """The copy of *tokens* rows of *width* bytes into *copies* rows, in the order of experts."""
    return memory_bound((tokens + copies) * width, precision=precision)


def unpermuted(tokens: float, copies: float, hidden: int, precision: str, *, fused: bool) -> Kernel:
    """The weighted sum of *copies* rows into *tokens* rows; its backward pass moves as much.

    Unfused three kernels: a product that reads and writes all copies, zeros, and sums in place that read a copy and
    the sum and write the sum (Megatron-LM, core/transformer/moe/moe_utils.py, ``unpermute``; fused since v0.11,
    ``--moe-permute-fusion``).
    """
    rows, launches = (tokens + copies, 1) if fused else (tokens + 5 * copies, 3)
    return memory_bound(rows * hidden * BYTES[precision], precision=precision, launches=launches)


FP8_BYTES = 1 + 4 / 128
"""Bytes of an element that is sent in 8 bits, with an fp32 scale for each 128 (DeepSeek-AI 2024, arXiv:2412.19437,
section 3.3.2)."""


def cast_to_fp8(tokens: float, hidden: int, precision: str) -> Kernel:
    """The cast of *tokens* rows before they are sent."""
    return memory_bound(tokens * hidden * (BYTES[precision] + FP8_BYTES), precision=precision)
