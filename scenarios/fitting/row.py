"""A row of a fit is one measurement, and the prediction of it as a function of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite, log

from scenarios.fitting.parameter import Values
from simulator.errors import CalibrationError


@dataclass(frozen=True, eq=False)
class Row:
    """*measured* and what *predicted* makes of the parameters' values, in one unit and above 0.

    *groups*: what a reader may want residuals by, such as ``{"data": "sc21", "tp": 8}``. *uses*: the names of the
    parameters that the prediction depends on (none: all), so that it is not computed again where others move.
    *noise*: the relative error that the measurement itself may have, by which it is weighed. *nearby*, for predictions
    that are dear: (values, base) -> the prediction at *values* over that at *base*, to first order, for slopes only.
    """

    name: str
    measured: float
    predicted: Callable[[Values], float]
    groups: Mapping[str, str | int] = field(default_factory=dict)
    uses: frozenset[str] = frozenset()
    noise: float = 0.03
    nearby: Callable[[Values, Values], float] | None = None
    _known: dict[tuple[float, ...], float] = field(init=False, repr=False, default_factory=dict)

    def at(self, values: Values) -> float:
        """The prediction. Raises `CalibrationError` where it is no positive number."""
        key = tuple(value for name, value in sorted(values.items()) if not self.uses or name in self.uses)
        if key not in self._known:
            value = self.predicted(values)
            if not (isfinite(value) and value > 0):
                raise CalibrationError(f"{self.name}: predicted {value}, which is no positive number")
            self._known[key] = value
        return self._known[key]

    def error(self, values: Values) -> float:
        """Predicted over measured, less 1."""
        return self.at(values) / self.measured - 1.0

    def slope(self, values: Values, base: Values) -> float:
        """How much larger the residual is at *values* than at *base*."""
        if self.nearby is None:
            return self.residual(values) - self.residual(base)
        return log(self.nearby(values, base)) / self.noise

    def residual(self, values: Values) -> float:
        """The logarithm of predicted over measured, in units of the noise: too slow by half weighs as too fast."""
        return log(self.at(values) / self.measured) / self.noise
