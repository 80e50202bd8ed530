"""Words of settings about operators: those that a stack fuses, those that run again, and how layers are divided.

A software stack names the operators that it runs as one kernel each. Compositions also keep more for the backward pass.
Layer norm, GELU of one operator, dropout and sums are one kernel in torch itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Fusible = Literal[
    "batch_norm",
    "bias_dropout_add",
    "block_sum",
    "cross_entropy",
    "gelu_new",
    "optimizer",
    "permute",
    "rms_norm",
    "rope",
    "router",
    "softmax",
    "swiglu",
]
"""Operators that some stacks fuse and others do not. *batch_norm*: with the activation and the sum that follow it.
*block_sum*: of the results of ring attention, block by block; *permute*: the copies of tokens for their experts, and
the weighted sum of the results; *router*: the choice of experts and the loss for equal loads."""

FUSIBLE: tuple[str, ...] = get_args(Fusible)

Fused = bool | frozenset[str]
"""All operators (true), none of them (false), or those named."""


def fuses(fused: Fused, operator: str) -> bool:
    """Return whether *fused* includes *operator*, one of `FUSIBLE`.

    >>> fuses(True, "rope"), fuses(frozenset({"swiglu"}), "rope")
    (True, False)
    """
    assert operator in FUSIBLE, operator
    return fused if isinstance(fused, bool) else operator in fused


Recomputable = Literal["attention", "experts", "mla_up", "norm", "swiglu"]
"""*attention*: core attention; *experts*: a mixture with its exchanges; *mla_up*: the products of latent attention that
make queries, keys and values, with the rotation; *norm*: norms whose output a product keeps; *swiglu*: activation
functions of feed-forward networks."""

RECOMPUTABLE: tuple[str, ...] = get_args(Recomputable)


@dataclass(frozen=True, slots=True)
class Rule:
    """Operators by *names*, or each *every*-th product of a layer and all that is no product; 0: by name."""

    names: frozenset[str] = frozenset()
    every: int = 0


Way = Literal["domain", "model", "batch"]
"""How ranks that share every micro-batch divide a layer of a convolutional model."""
