"""A parameter of a fit: a physical quantity with its start, its bounds and the places to which its value goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

Values = Mapping[str, float]
"""The value of each parameter by its name."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The positive quantity *name* in *unit*; the fit begins at *start* and stays between *low* and *high*.

    *meaning* is a sentence for a reader of the fit. *lands*: the places to which the value goes, each
    ``package.file:key``. *spread*: one standard deviation of the logarithm about *start*, known from sources other than
    the rows (0.1 is a tenth); None if nothing is known. *family*: parameters that are the same quantity on other
    machines; where no row informs one of them, the others do.
    """

    name: str
    start: float
    low: float
    high: float
    unit: str
    meaning: str
    lands: tuple[str, ...] = ()
    spread: float | None = None
    family: str = ""

    def inner(self, value: float) -> float:
        """Return the number that the fit changes: the logarithm of *value*.

        >>> Parameter("share", 0.5, 0.1, 1.0, "", "a share").inner(1.0)
        0.0
        """
        return log(value)

    def outer(self, inner: float) -> float:
        """Return the value of the number that the fit changes; never beyond the bounds."""
        return min(max(exp(inner), self.low), self.high)
