"""All combinations of the values that may vary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clustersim.scenarios.alternatives.candidate import Candidate
    from clustersim.scenarios.alternatives.space import Space


def candidates(space: Space) -> Iterator[Candidate]:
    """Yield every candidate of *space*."""
    return space.candidates()
