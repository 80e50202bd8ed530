"""Which operators of a layer recomputation by operator runs again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Name = Literal["attention", "experts", "mla_up", "norm", "swiglu"]
"""*attention*: core attention; *experts*: a mixture with its exchanges; *mla_up*: the products of latent attention that
make queries, keys and values, with the rotation; *norm*: norms whose output a product keeps; *swiglu*: activation
functions of feed-forward networks."""

NAMES: tuple[str, ...] = get_args(Name)


@dataclass(frozen=True, slots=True)
class Rule:
    """Operators by *names*, or each *every*-th product of a layer and all that is no product; 0: by name."""

    names: frozenset[str] = frozenset()
    every: int = 0
