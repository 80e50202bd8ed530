"""Recomputation: `training.recompute` as a word or as a section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag, model_validator

from simulator.document import Count, Fault, Section, Size

GROUPED = ("uniform", "block")
"""Methods that count layers."""

AUTO = "auto"


def _word(value: Any) -> Any:
    if value in GROUPED:
        raise ValueError(f"{value} counts layers; write {{method: {value}, num_layers: 1}}")
    return value


class Recompute(Section):
    """Activations that are computed again in the backward pass."""

    method: Literal["none", "selective", "full", "uniform", "block", "optimal"]
    """none, selective (attention), full (each layer), uniform (groups of num_layers layers keep the input of the
    group), block (the first num_layers layers of each stage), optimal (the fastest within budget). Required."""
    num_layers: Count | None = None
    """Of uniform, the layers of a group; of block, the layers that are recomputed; by default 1."""
    budget: Literal["auto"] | Size | None = None
    """Of optimal, the bytes of activations on each GPU; by default auto: what states, buffers and reserves leave of its
    memory."""

    @model_validator(mode="after")
    def _consistent(self) -> Recompute:
        if self.num_layers is not None and self.method not in GROUPED:
            raise Fault("num_layers", f"belongs to method: uniform or block, not to {self.method}")
        if self.budget is not None and self.method != "optimal":
            raise Fault("budget", f"belongs to method: optimal, not to {self.method}")
        return self

    def __str__(self) -> str:
        """In a title.

        >>> str(Recompute(method="block", num_layers=4))
        'block 4'
        """
        return f"{self.method} {self.num_layers}" if self.num_layers else self.method


Word = Literal["none", "selective", "full", "optimal"]

AnyRecompute = Annotated[
    Annotated[Word, BeforeValidator(_word), Tag("word")] | Annotated[Recompute, Tag("section")],
    Discriminator(lambda value: "section" if isinstance(value, dict | Recompute) else "word"),
]
"""One word, or a section."""
