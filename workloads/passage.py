"""A passage is a stretch of kernels and what the ranks of a tensor-parallel group exchange before and after it."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective *kind* over the tensor-parallel ranks; *nbytes* is the full vector.

    *divisible*: it can run beside the product that it belongs to, piece by piece.
    """

    kind: str
    nbytes: float
    divisible: bool = False

    def times(self, samples: int) -> Exchange:
        """The exchange of so many samples, this being that of one."""
        return Exchange(self.kind, self.nbytes * samples, self.divisible)


@dataclass(frozen=True, slots=True)
class Passage:
    """*kernels* one after the other, the exchanges *before* the first and those *after* the last."""

    kernels: tuple[Kernel, ...]
    before: tuple[Exchange, ...] = ()
    after: tuple[Exchange, ...] = ()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All of them, in order."""
        return self.before + self.after
