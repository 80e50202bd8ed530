"""The exchanges that bring tokens to their experts and results back.

*Straight*: an all-to-all among the ranks of the expert-parallel group, with as many bytes for each peer as tokens go
to its experts. *By domains*: a token is sent once to each domain of fast links (a node) that has experts of it, to the
rank with the sender's place in it, and passes from there to its experts. Both hops go piece by piece, so that they run
beside each other (DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 3.2.2; DeepEP). If several ranks share
each expert, they gather their tokens before, and reduce-scatter the results after it (Megatron-LM, core/transformer/
moe/token_dispatcher.py, ``MoEAlltoAllTokenDispatcher``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from simulator.schedule.ops import BySender
from workloads.experts.router import COUNT_BYTES
from workloads.experts.sizes import Experts
from workloads.operators.segment import Exchange


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
