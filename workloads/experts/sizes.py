"""The experts of a layer and how they are spread over ranks: what `Shape` says of a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from workloads.experts.load import Shares, capacity


@dataclass(frozen=True, slots=True)
class ExpertCut:
    """Experts are divided over *ranks* ranks of the axis *over*; *tensor* ranks of *tensor_over* share each expert.

    Gradients are reduced over *reduced_over*: the ranks with the same weights. *coordinate*: the rank on *over* that
    a model is of; ranks with unequal loads have models of their own. *domain*: so many neighbours on *over* have fast
    links to one another, and a token passes to each domain once; 0: every token is sent straight to each expert.
    *overlap*: ``shared_experts`` computes them beside the exchanges. *sent_fp8*: tokens and gradients go to experts in
    8 bits; results come back in the precision of the model.
    """

    ranks: int = 1
    over: str = "ep"
    tensor: int = 1
    tensor_over: str = "tp"
    reduced_over: str = "dp"
    coordinate: int = 0
    domain: int = 0
    overlap: str = "none"
    sent_fp8: bool = False


NOT_CUT = ExpertCut()
"""Every rank holds all experts whole."""


@dataclass(frozen=True, slots=True)
class Experts:
    """*count* experts of *width* features inside, of which a router chooses *topk* for each token.

    *shared*: features inside the expert that every token passes; *shared_gate*: a gate of one output scales it.
    *groups* groups of experts, in *chosen_groups* of which the experts of a token are. *capacity_factor*: an expert
    takes at most so many times its equal share of tokens, and others are dropped; 0: it takes all. *padded*: each
    expert computes its whole capacity. *loads*: of each layer with experts, or one for all. *dense_first*: so many
    layers at the begin have no experts; *pattern*: 1 for a layer with experts, 0 for one without, repeated.
    *router_bias*: the router has a bias. *aux_loss*: a loss for equal loads is computed.
    """

    count: int
    topk: int
    width: int
    shared: int = 0
    shared_gate: bool = False
    groups: int = 1
    chosen_groups: int = 1
    capacity_factor: float = 0.0
    padded: bool = False
    loads: tuple[Shares, ...] = ((),)
    dense_first: int = 0
    pattern: tuple[int, ...] = (1,)
    router_bias: bool = False
    aux_loss: bool = True
    cut: ExpertCut = field(default=NOT_CUT)

    @property
    def local(self) -> int:
        """Experts of one rank."""
        return self.count // self.cut.ranks

    @property
    def balanced(self) -> bool:
        """True if all experts of each layer get the same number of tokens."""
        return all(len(set(shares)) <= 1 for shares in self.loads)

    def is_sparse(self, layer: int) -> bool:
        """True if that layer has experts."""
        return layer >= self.dense_first and bool(self.pattern[layer % len(self.pattern)])

    def load(self, sparse: int) -> Shares:
        """The shares of the layer that is number *sparse* of those with experts."""
        return self.loads[sparse % len(self.loads)] or (1.0 / self.count,) * self.count

    def tokens(self, sparse: int, rows: float) -> tuple[float, ...]:
        """The expected tokens that a rank with *rows* tokens sends to each expert."""
        sent = tuple(rows * self.topk * share for share in self.load(sparse))
        if not self.capacity_factor:
            return sent
        most = capacity(rows, self.topk, self.count, self.capacity_factor)
        return (float(most),) * self.count if self.padded else tuple(min(tokens, float(most)) for tokens in sent)

    def of_rank(self, coordinate: int) -> slice:
        """The experts of the rank at *coordinate*."""
        return slice(coordinate * self.local, (coordinate + 1) * self.local)

    def at(self, coordinate: int) -> Experts:
        """As the rank at *coordinate* has them."""
        return replace(self, cut=replace(self.cut, coordinate=coordinate))

    def fullest(self) -> int:
        """The coordinate of the rank with most tokens, all layers together."""
        totals = [sum(self.load(n)[e] for n in range(len(self.loads))) for e in range(self.count)]
        by_rank = [sum(totals[self.of_rank(rank)]) for rank in range(self.cut.ranks)]
        return by_rank.index(max(by_rank))
