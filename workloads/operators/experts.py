"""The experts of a layer, how they are spread over ranks, and how tokens are spread over them.

The load of an expert is its share of all assignments. A token has *topk* assignments to different experts, so that no
expert gets more than one in *topk* of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import ceil, isclose
from pathlib import Path

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import TableRow, UnreadableFile, read_rows

Shares = tuple[float, ...]
"""The share of the assignments of a layer that each expert gets; they add up to 1. Empty: all get the same."""

COLUMNS = ("expert", "tokens")
"""What a table of loads must have; with a column ``layer`` each layer with experts has a load of its own."""


def zipf(experts: int, exponent: float, topk: int) -> Shares:
    """Shares in proportion to 1 / (i + 1)^s, s the *exponent*, of expert i; what exceeds 1 / *topk* goes to the rest.

    >>> zipf(2, 1.0, 1)
    (0.666..., 0.333...)
    >>> zipf(3, 9.0, 2)[0]
    0.5
    """
    weights = [(number + 1) ** -exponent for number in range(experts)]
    full = 0
    while full < topk:
        rest = (1.0 - full / topk) / sum(weights[full:])
        if weights[full] * rest <= 1.0 / topk:
            break
        full += 1
    if full == topk:
        return (1.0 / topk,) * topk + (0.0,) * (experts - topk)
    return (1.0 / topk,) * full + tuple(weight * rest for weight in weights[full:])


def read_load(path: Path, experts: int, topk: int, layers: int) -> tuple[Shares, ...]:
    """The shares of each of *layers* layers, from the table at *path*; one for all if it has no column ``layer``.

    Raises `ScenarioError` for what is missing, given twice, negative, or more than all tokens can be.
    """
    header, *rows = read_rows(path)
    columns = header.cells
    for column in COLUMNS:
        if column not in columns:
            raise UnreadableFile(path, f'has no column "{column}"; it needs {" and ".join(COLUMNS)}', line=header.line)
    by_layer = "layer" in columns
    found: dict[tuple[int, int], float] = {}
    for row in rows:
        layer = _index(path, row, columns, "layer", layers) if by_layer else 0
        expert = _index(path, row, columns, "expert", experts)
        if (layer, expert) in found:
            raise UnreadableFile(path, f"has expert {expert} twice", line=row.line)
        found[layer, expert] = _tokens(path, row, columns)
    return tuple(_shares(path, found, layer, experts, topk) for layer in range(layers if by_layer else 1))


def _index(path: Path, row: TableRow, columns: Sequence[str], name: str, count: int) -> int:
    text = _cell(row, columns, name)
    if not text.isdecimal() or int(text) >= count:
        raise UnreadableFile(path, f'{name} must be a number from 0 to {count - 1}, not "{text}"', line=row.line)
    return int(text)


def _tokens(path: Path, row: TableRow, columns: Sequence[str]) -> float:
    text = _cell(row, columns, "tokens")
    try:
        tokens = float(text)
    except ValueError:
        tokens = -1.0
    if not 0 <= tokens < float("inf"):
        raise UnreadableFile(path, f'tokens must be a number of 0 or more, not "{text}"', line=row.line)
    return tokens


def _cell(row: TableRow, columns: Sequence[str], name: str) -> str:
    place = columns.index(name)
    return row.cells[place].strip() if place < len(row.cells) else ""


def _shares(path: Path, found: dict[tuple[int, int], float], layer: int, experts: int, topk: int) -> Shares:
    missing = [expert for expert in range(experts) if (layer, expert) not in found]
    if missing:
        raise ScenarioError(f"{path}: layer {layer} has no row for expert {missing[0]}; there are {experts} experts")
    tokens = [found[layer, expert] for expert in range(experts)]
    total = sum(tokens)
    if not total:
        raise ScenarioError(f"{path}: layer {layer} has no tokens")
    most = max(tokens)
    if most > total / topk and not isclose(most, total / topk):
        raise ScenarioError(
            f"{path}: expert {tokens.index(most)} of layer {layer} has {most:g} of {total:g} tokens; each token goes "
            f"to {topk} different experts, so that one has at most {total / topk:g}"
        )
    return tuple(count / total for count in tokens)


def capacity(tokens: float, topk: int, experts: int, factor: float) -> int:
    """The tokens that an expert takes at most of *tokens* tokens on one rank (Megatron-LM, ``get_capacity``).

    >>> capacity(4096, 2, 8, 1.25)
    1280
    """
    return ceil(tokens * topk / experts * factor)


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
    *router_bias*: the router has a bias. *aux_loss*: a loss for equal loads is computed. *latent*: features of a token
    that experts take and give, and that are sent; 0: those of the hidden state. *own_norms*: what experts take and give
    has norms, and so has what the shared expert gives; experts have scales, too (Gemma 4).
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
    latent: int = 0
    own_norms: bool = False
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
