"""A row of a fit: one measurement, and its prediction as a function of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, log

from scenarios.fitting.parameter import Values
from simulator.errors import CalibrationError


@dataclass(frozen=True, eq=False)
class Row:
    """The *measured* value, and *predicted*: parameter values -> prediction. Both are above 0 and in one unit.

    *groups*: the groups of the report to which the row belongs, such as ``{"data": "sc21", "tp": 8}``. *uses*: the
    names of the parameters on which the prediction depends (empty: all); it is cached while others change. *noise*: the
    relative error of the measurement, by which the row is weighed. *nearby*, for expensive predictions: (values, base)
    -> the prediction at *values* over that at *base*, to first order, for slopes only.
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
        """Return the prediction. Raises `CalibrationError` if it is not a positive number."""
        key = tuple(value for name, value in sorted(values.items()) if not self.uses or name in self.uses)
        if key not in self._known:
            value = self.predicted(values)
            if not (isfinite(value) and value > 0):
                raise CalibrationError(f"{self.name}: predicted {value}, which is no positive number")
            self._known[key] = value
        return self._known[key]

    def given(self, fixed: Values) -> Row:
        """Return the row with the values *fixed* added to those that it is predicted by."""
        if not fixed:
            return self
        nearby = self.nearby
        return replace(
            self,
            predicted=lambda values: self.at({**fixed, **values}),
            nearby=nearby and (lambda values, base: nearby({**fixed, **values}, {**fixed, **base})),
        )

    def error(self, values: Values) -> float:
        """Return predicted / measured - 1."""
        return self.at(values) / self.measured - 1.0

    def slope(self, values: Values, base: Values) -> float:
        """Return the residual at *values* minus that at *base*."""
        if self.nearby is None:
            return self.residual(values) - self.residual(base)
        return log(self.nearby(values, base)) / self.noise

    def residual(self, values: Values) -> float:
        """Return log(predicted / measured) in units of the noise: twice as slow weighs as much as twice as fast."""
        return log(self.at(values) / self.measured) / self.noise
