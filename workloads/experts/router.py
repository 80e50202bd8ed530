"""The router scores all experts for each token and chooses some; tokens are then copied into the order of experts."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel, memory_bound
from workloads.operators.linear import Linear

SCORE_BYTES = 4
"""Bytes of a score: the softmax or sigmoid is in fp32 (Megatron-LM, core/transformer/moe/router.py)."""

CHOICE = 4
"""Passes over the scores of a choice: softmax, top-k, and two scatters into a dense map (Megatron-LM,
core/transformer/moe/moe_utils.py, ``topk_softmax_with_capacity``). The backward pass has as many."""

AUX_LOSS = 3
"""Further ones of the loss for equal loads: a sum over tokens, a product, a sum (same file,
``switch_load_balancing_loss_func``; Fedus et al. 2022, arXiv:2101.03961, equation 4)."""

CHOICE_OPERATORS = 9, 6
"""Operators of a choice that is not fused, by pass, in the same function: top-k, softmax, a cast, zeros and
a scatter of probabilities, zeros, a cast, a scatter and a cast of the map; a gather, a cast, the gradient of the
softmax, zeros and a scatter for the top-k, and the sum with the gradient of the loss."""

AUX_LOSS_OPERATORS = 13, 5
"""Those of the loss for equal loads that is not fused: softmax, top-k, zeros, a cast, a scatter, a cast and a sum for
the map, a sum, a product, a sum and a scale for the loss, a quotient and a sum for the log (core/transformer/moe/
router.py, ``compute_routing_scores_for_aux_loss`` and ``apply_load_balancing_loss``); two scales, an expansion, a
product and the gradient of the softmax."""

COUNT_OPERATORS = 7
"""Operators that count tokens for the sizes of messages: sum and cast of the map; sums for each rank of what is sent;
of the gathered counts a copy of the part of this rank, and sums for each sender, each group and each expert (core/
transformer/moe/token_dispatcher.py, ``MoEAlltoAllTokenDispatcher.preprocess``)."""

COPIES_TO_HOST = 4
"""Copies of counts to the host, which waits for them: what is sent, what is received, over both axes, and the tokens of
each expert (same file, ``_maybe_dtoh_and_synchronize``)."""

COUNT_BYTES = 8
"""Bytes of a count of tokens, an int64."""


@dataclass(frozen=True)
class Router:
    """Scores of *experts* experts by the *linear* map, of which *topk* are chosen; *aux_loss*: a loss is computed.

    *fused*: the choice is one kernel, and the loss two (Megatron-LM, ``--moe-router-fusion``).
    """

    linear: Linear
    topk: int
    aux_loss: bool
    fused: bool = True

    @property
    def experts(self) -> int:
        """How many there are."""
        return self.linear.outputs

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The scores, and the choice."""
        return (*self.linear.forward(samples), *self._choice(samples, 0))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradients of the scores and of the tokens."""
        return (*self._choice(samples, 1), *self.linear.backward_input(samples))

    def kept_bytes(self, samples: int) -> float:
        """The probabilities, and the map of the choice, a byte each; the input belongs to all parts of the layer."""
        return samples * self.linear.rows * self.experts * (SCORE_BYTES + 1.0)

    def counted(self, samples: int) -> Kernel:
        """The counts of tokens by expert, and their copies to the host; they read the map, a byte for each score."""
        nbytes = float(samples * self.linear.rows * self.experts)
        return memory_bound(nbytes, precision=self.linear.precision, operators=COUNT_OPERATORS + COPIES_TO_HOST)

    def _choice(self, samples: int, backward: int) -> tuple[Kernel, ...]:
        passes = CHOICE + (AUX_LOSS if self.aux_loss else 0)
        nbytes = samples * self.linear.rows * self.experts * SCORE_BYTES * passes
        apart = CHOICE_OPERATORS[backward] + (AUX_LOSS_OPERATORS[backward] if self.aux_loss else 0)
        launches = (3 if self.aux_loss else 1) if self.fused else 1
        operators = 0 if self.fused else apart
        return (memory_bound(nbytes, precision=self.linear.precision, launches=launches, operators=operators),)


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


def cast_to_fp8(tokens: float, hidden: float, precision: str) -> Kernel:
    """The cast of *tokens* rows before they are sent."""
    return memory_bound(tokens * hidden * (BYTES[precision] + FP8_BYTES), precision=precision)
