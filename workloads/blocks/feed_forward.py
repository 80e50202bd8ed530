"""A feed-forward network with a width of its own, for models whose layers have unequal ones (Nemotron's puzzles)."""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.simulator.reading.quantities import Count, Flag
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.elementwise import gelu, swiglu
from clustersim.workloads.operators.operator import Operator, fuses


class FeedForward(Block):
    """Two products, or three if it is gated, with an activation."""

    width: Count = 4096
    """Features inside."""
    gated: Flag = True
    """The activation multiplies two products (SwiGLU, GeGLU)."""

    def counts(self, features: int) -> Mapping[str, int]:
        """The width."""
        return {"width of feed_forward": self.width}

    def context_fault(self, hidden: HiddenStates, context: ContextCut) -> str:
        """It can always be cut: each position is by itself."""
        return ""

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """One rank's columns between the products."""
        own = self.width // hidden.ranks
        elements = hidden.rows * own
        if not self.gated:
            return hidden.into(own), gelu(elements, hidden.precision), hidden.out_of(own)
        made = hidden.into(2 * own, splits=(own, own))
        return made, swiglu(elements, hidden.precision, fused=fuses(hidden.fused, "swiglu")), hidden.out_of(own)
