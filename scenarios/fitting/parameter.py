"""A parameter of a fit is a physical quantity: a name, where it begins, what it may be, and where its value lands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

Values = Mapping[str, float]
"""The value of each parameter by its name."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The quantity *name*, in *unit*, which begins at *start* and stays between *low* and *high*.

    *meaning* is a sentence for a reader of the fit. *lands*: where the value goes, ``package.file:key``, in each of
    these places. *logarithmic*: the fit moves its logarithm, as suits what is above 0; else the value itself.
    *spread*: how far from *start* it is expected, one standard deviation in the terms of the fit (0.1 is a tenth where
    logarithmic), from what is known beside the rows; None: nothing is.
    """

    name: str
    start: float
    low: float
    high: float
    unit: str
    meaning: str
    lands: tuple[str, ...] = ()
    logarithmic: bool = True
    spread: float | None = None

    def inner(self, value: float) -> float:
        """The number that the fit moves, of *value*.

        >>> Parameter("share", 0.5, 0.1, 1.0, "", "a share").inner(1.0)
        0.0
        """
        return log(value) if self.logarithmic else value

    def outer(self, inner: float) -> float:
        """The value, of the number that the fit moves; never beyond the bounds."""
        value = exp(inner) if self.logarithmic else inner
        return min(max(value, self.low), self.high)


def starts(parameters: tuple[Parameter, ...]) -> dict[str, float]:
    """Where a fit begins."""
    return {parameter.name: parameter.start for parameter in parameters}
