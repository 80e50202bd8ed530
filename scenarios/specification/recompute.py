"""Recomputation: `training.recompute` as a word or as a section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from simulator.document import Count, Fault, Section, Size
from workloads.saved_tensors.rule import NAMES, Name, Rule

GROUPED = ("uniform", "block")
"""Methods that count layers."""

AUTO = "auto"


def _word(value: Any) -> Any:
    if value == "operators":
        raise ValueError("operators needs their names; write {method: operators, operators: [norm, swiglu]}")
    if value in GROUPED:
        raise ValueError(f"{value} counts layers; write {{method: {value}, num_layers: 1}}")
    return value


class Recompute(Section):
    """Activations that are computed again in the backward pass."""

    method: Literal["none", "selective", "full", "uniform", "block", "operators", "optimal"]
    """none, selective (attention), full (each layer), uniform (groups of num_layers layers keep the input of the
    group), block (the first num_layers layers of each stage), operators (those that are named, or by every), optimal
    (the fastest within budget). Required."""
    num_layers: Count | None = None
    """Of uniform, the layers of a group; of block, the layers that are recomputed; by default 1."""
    operators: Annotated[list[Name], Field(min_length=1)] | None = None
    """Of operators: attention (core attention), experts (a mixture and its exchanges), mla_up (what makes queries, keys
    and values of latent attention), norm, swiglu (activation functions), as Megatron-LM's --recompute-modules."""
    every: Count | None = None
    """Of operators: each matrix product with a number that is a multiple of it, and all that is no product, runs again,
    as torchtitan's selective checkpoints by operator with 2."""
    budget: Literal["auto"] | Size | None = None
    """Of optimal, the bytes of activations on each GPU; by default auto: what states, buffers and reserves leave of its
    memory."""

    @model_validator(mode="after")
    def _consistent(self) -> Recompute:
        if self.num_layers is not None and self.method not in GROUPED:
            raise Fault("num_layers", f"belongs to method: uniform or block, not to {self.method}")
        by_operator = self.method == "operators"
        for key in ("operators", "every"):
            if getattr(self, key) is not None and not by_operator:
                raise Fault(key, f"belongs to method: operators, not to {self.method}")
        if by_operator and (self.operators is None) == (self.every is None):
            raise Fault("operators", f"needs one of operators, a list of {', '.join(NAMES)}, and every, such as 2")
        if self.every == 1:
            raise Fault("every", "must be 2 or more; take method: full for 1")
        if self.budget is not None and self.method != "optimal":
            raise Fault("budget", f"belongs to method: optimal, not to {self.method}")
        return self

    def __str__(self) -> str:
        """In a title.

        >>> str(Recompute(method="block", num_layers=4))
        'block 4'
        """
        numbers = (str(one) for one in (self.num_layers, self.every) if one)
        return " ".join([self.method, *numbers, *(self.operators or ())])

    @property
    def rule(self) -> Rule | None:
        """What runs again by operator; None: nothing does. Activation functions have a rule of their own."""
        if self.method != "operators":
            return None
        return Rule(frozenset(self.operators or ()) - {"swiglu"}, self.every or 0)


Word = Literal["none", "selective", "full", "optimal"]

AnyRecompute = Annotated[
    Annotated[Word, BeforeValidator(_word), Tag("word")] | Annotated[Recompute, Tag("section")],
    Discriminator(lambda value: "section" if isinstance(value, dict | Recompute) else "word"),
]
"""One word, or a section."""
