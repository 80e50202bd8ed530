"""The router chooses experts for each token; exchanges bring the tokens to them and the results back.

*Straight*: an all-to-all among the ranks of the expert-parallel group, with as many bytes for each peer as tokens go
to its experts. *By domains*: a token is sent once to each domain of fast links (a node) that has experts of it, to the
rank with the sender's place in it, and passes from there to its experts. Both hops go piece by piece, so that they run
beside each other (DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 3.2.2; DeepEP). If several ranks share
each expert, they gather their tokens before, and reduce-scatter the results after it (Megatron-LM, core/transformer/
moe/token_dispatcher.py, ``MoEAlltoAllTokenDispatcher``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from clustersim.simulator.hardware.kernel import BYTES, Kernel, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import BySender
from clustersim.workloads.operators.experts import Experts
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import Exchange

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


ADDED_IN_PLACE = 3
"""Accesses of an element that torch's ``scatter_add_`` adds, one at a time: it, and the sum twice. On one H200 with
torch 2.11, 16,384 to 131,072 rows of 2,048 to 7,168 features in bf16 take 2.7 to 3.0 at `SINGLE_ACCESSES`."""


def unpermuted(tokens: float, copies: float, hidden: int, precision: str, *, fused: bool) -> tuple[Kernel, ...]:
    """The weighted sum of *copies* rows into *tokens* rows.

    Unfused three kernels: a product that reads and writes all copies, zeros, and sums in place that read a copy and
    the sum and write the sum (Megatron-LM, core/transformer/moe/moe_utils.py, ``unpermute``; fused since v0.11,
    ``--moe-permute-fusion``).
    """
    width = hidden * BYTES[precision]
    if fused:
        return (memory_bound((tokens + copies) * width, precision=precision),)
    added = memory_bound(3 * copies * width, precision=precision, accesses=ADDED_IN_PLACE * copies * hidden)
    return memory_bound((tokens + 2 * copies) * width, precision=precision, launches=2), added


def unpermuted_backward(tokens: float, copies: float, hidden: int, precision: str, *, fused: bool) -> Kernel:
    """The gradients of *copies* rows and of their weights.

    Unfused three kernels: copies of the gradients of *tokens* rows, their product with the weights, and the sums of
    their product with the rows.
    """
    rows, launches = (tokens + copies, 1) if fused else (tokens + 5 * copies, 3)
    return memory_bound(rows * hidden * BYTES[precision], precision=precision, launches=launches)


FP8_BYTES = 1 + 4 / 128
"""Bytes of an element that is sent in 8 bits, with an fp32 scale for each 128 (DeepSeek-AI 2024, arXiv:2412.19437,
section 3.3.2)."""


def cast_to_fp8(tokens: float, hidden: float, precision: str) -> Kernel:
    """The cast of *tokens* rows before they are sent."""
    return memory_bound(tokens * hidden * (BYTES[precision] + FP8_BYTES), precision=precision)


@dataclass(frozen=True)
class Dispatch:
    """Exchanges of one layer: *tokens* of a rank for each expert; the rank has *rows* tokens.

    A token has *sent* bytes on the way to its experts and *width* on the way back. *sequence_cut*: the ranks that share
    experts have different tokens, so that they gather them.
    """

    experts: Experts
    tokens: tuple[float, ...]
    rows: float
    sent: float
    width: float
    sequence_cut: bool

    def there(self) -> tuple[Exchange, ...]:
        """From the tokens to the experts; exchanges of several hops run beside each other."""
        return self._hops(back=False)

    def back(self) -> tuple[Exchange, ...]:
        """From the experts to the tokens."""
        return self._hops(back=True)

    def counts(self) -> tuple[Exchange, ...]:
        """Each rank gathers the counts of tokens of all: it needs them for the sizes of its messages.

        None where sizes are known: experts on one rank, or padded to their capacity.
        """
        cut = self.experts.cut
        if cut.ranks == 1 or self.experts.padded:
            return ()
        return (Exchange("all_gather", float(cut.ranks * self.experts.count * COUNT_BYTES), cut.over),)

    def gathered(self) -> tuple[Exchange, ...]:
        """The ranks that share experts gather their tokens."""
        return self._shared("all_gather", self.sent)

    def scattered(self) -> tuple[Exchange, ...]:
        """They sum up results, each for its own tokens."""
        return self._shared("reduce_scatter", self.width)

    @property
    def sources(self) -> int:
        """From how many ranks tokens come."""
        return self.experts.cut.ranks * (self.experts.cut.tensor if self.sequence_cut else 1)

    @property
    def arriving(self) -> tuple[float, ...]:
        """The tokens of each expert of this rank, from all ranks."""
        cut = self.experts.cut
        return tuple(self.sources * count for count in self.tokens[self.experts.of_rank(cut.coordinate)])

    def _shared(self, kind: str, width: float) -> tuple[Exchange, ...]:
        cut, nbytes = self.experts.cut, sum(self.arriving) * width
        return (Exchange(kind, nbytes, cut.tensor_over),) if cut.tensor > 1 and self.sequence_cut and nbytes else ()

    def _hops(self, *, back: bool) -> tuple[Exchange, ...]:
        cut, width = self.experts.cut, self.width if back else self.sent
        if cut.ranks == 1:
            return ()
        to_rank = [sum(self.tokens[self.experts.of_rank(rank)]) * width for rank in range(cut.ranks)]
        if not cut.domain or cut.domain >= cut.ranks:
            return (_exchange(to_rank, cut.over, back=back),)
        domains = cut.ranks // cut.domain
        copies = [self.rows * share * width for share in domain_shares(self.experts, self.tokens, domains)]
        own = cut.coordinate // cut.domain
        inside = [domains * nbytes for nbytes in to_rank[own * cut.domain : (own + 1) * cut.domain]]
        hops = [(copies, ACROSS), (inside, WITHIN)]
        return tuple(_exchange(nbytes, f"{cut.over}.{name}", back=back) for nbytes, name in hops if len(nbytes) > 1)


ACROSS, WITHIN = "across", "within"
"""The parts of the expert axis: across domains, between ranks with the same place; and within a domain."""


def _exchange(nbytes: Sequence[float], over: str, *, back: bool) -> Exchange:
    equal = len(set(nbytes)) == 1
    per_peer = None if equal else BySender(tuple(nbytes)) if back else tuple(nbytes)
    return Exchange("all_to_all", sum(nbytes), over, per_peer=per_peer)


def domain_shares(experts: Experts, tokens: Sequence[float], domains: int) -> tuple[float, ...]:
    """The share of the tokens of a rank that have an expert in each of *domains* domains.

    Exact if all choices of experts are equally likely, within the groups that a token may choose. With unequal loads
    the choices of a token count as independent.
    """
    if experts.balanced and not experts.capacity_factor:
        return (_chosen(experts, domains),) * domains
    each, total = experts.count // domains, sum(tokens)
    loads = [sum(tokens[number * each : (number + 1) * each]) / total if total else 0.0 for number in range(domains)]
    # groups hold the mean number of domains of a token down
    free = [1.0 - (1.0 - load) ** experts.topk for load in loads]
    limit = domains * _chosen(experts, domains) / sum(free) if experts.chosen_groups < experts.groups else 1.0
    return tuple(min(1.0, share * min(1.0, limit)) for share in free)


def _chosen(experts: Experts, domains: int) -> float:
    """The probability that a token has an expert in a domain, if all choices are equally likely.

    >>> _chosen(Experts(256, 8, 1), 8), round(8 * _chosen(Experts(256, 8, 1, groups=8, chosen_groups=4), 8), 3)
    (0.661..., 3.629)
    """
    held, groups, chosen, topk = experts.count // domains, experts.groups, experts.chosen_groups, experts.topk
    group = experts.count // groups
    if groups <= domains:  # a domain is in one group
        return chosen / groups * (1.0 - _none_of(held, chosen * group, topk))
    mine = groups // domains
    absent = 0.0
    for inside in range(min(mine, chosen) + 1):
        ways = comb(mine, inside) * comb(groups - mine, chosen - inside) / comb(groups, chosen)
        absent += ways * _none_of(inside * group, chosen * group, topk)
    return 1.0 - absent


def _none_of(held: int, among: int, topk: int) -> float:
    """The probability that none of *held* experts is in a choice of *topk* *among* so many."""
    return comb(among - held, topk) / comb(among, topk) if among - held >= topk else 0.0
