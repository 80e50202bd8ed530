"""The section training.offload: what of a training step is in the memory of the host."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from simulator.document import Count, Section
from simulator.document.validation import near


class Offload(Section):
    """What of a training step is in the memory of the host."""

    activations: Literal["all", "auto"] | list[int | str] | None = None
    """Layers whose activations are on the host between forward and backward pass: all, a list of names or indices in
    order of the forward pass, or auto: the fewest that let the step fit. By default none."""
    outstanding: Count = 1
    """Copies of activations to the host that may be under way when the forward pass of a layer begins; it waits for
    earlier ones. 1 is a double buffer."""
    ahead: Count = 1
    """How many layer passes before the backward pass of a layer the copy of its activations back begins. 1 is a double
    buffer."""

    @field_validator("activations", mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if isinstance(value, str) and value not in WORDS:
            hint = near(value, WORDS)
            raise ValueError(f'must be all, auto or a list of layers, not "{value}"' + (f"; {hint}" if hint else ""))
        return value


WORDS = "all", "auto"
