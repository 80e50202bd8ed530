"""The fit of catalogue parameters to rows by robust least squares, with bounds and with knowledge from other sources.

Rows are few and predictions are expensive: each prediction may be a simulation. A step costs one prediction of each row
for each parameter that the row uses.

The report of a fit has its parameters with uncertainty, and the errors of rows. Only errors of rows that the fit has
not seen (cross-validation) are evidence of accuracy; errors of fitted rows are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import exp, isfinite, log

import numpy as np

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.units import show
from clustersim.simulator.replay.robust_regression import NORMAL_MAD, Array, RobustProblem

Values = Mapping[str, float]
"""The value of each parameter by its name."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The positive quantity *name* in *unit*; the fit begins at *start* and stays between *low* and *high*.

    *meaning* is a sentence for a reader of the fit. *lands*: the places to which the value goes, each
    ``package.file:key``. *spread*: one standard deviation of the logarithm about *start*, known from sources other than
    the rows (0.1 is a tenth); None if nothing is known.
    """

    name: str
    start: float
    low: float
    high: float
    unit: str
    meaning: str
    lands: tuple[str, ...] = ()
    spread: float | None = None

    def inner(self, value: float) -> float:
        """Return the number that the fit changes: the logarithm of *value*.

        >>> Parameter("share", 0.5, 0.1, 1.0, "", "a share").inner(1.0)
        0.0
        """
        return log(value)

    def outer(self, inner: float) -> float:
        """Return the value of the number that the fit changes; never beyond the bounds."""
        return min(max(exp(inner), self.low), self.high)


@dataclass(frozen=True, eq=False)
class FitRow:
    """The *measured* value, and *predicted*: parameter values -> prediction. Both are above 0 and in one unit.

    *groups*: the groups of the report to which the row belongs, such as ``{"data": "sc21", "tp": 8}``. *uses*: the
    names of the parameters on which the prediction depends (empty: all); it is cached while others change. *noise*: the
    relative error of the measurement, by which the row is weighed. *nearby*, for expensive predictions: (values, base)
    -> the prediction at *values* over that at *base*, to first order, for slopes only. *known*: whether it is knowledge
    about parameters from elsewhere, not a measurement; it is fitted to, and counts in no report.
    """

    name: str
    measured: float
    predicted: Callable[[Values], float]
    groups: Mapping[str, str | int] = field(default_factory=dict)
    uses: frozenset[str] = frozenset()
    noise: float = 0.03
    nearby: Callable[[Values, Values], float] | None = None
    known: bool = False
    _known: dict[tuple[float, ...], float] = field(init=False, repr=False, default_factory=dict)

    def at(self, values: Values) -> float:
        """Return the prediction. Raises `CalibrationError` if it is not a positive number."""
        names = self.uses or sorted(values)
        key = tuple([values[name] for name in names if name in values])
        if key not in self._known:
            value = self.predicted(values)
            if not (isfinite(value) and value > 0):
                raise CalibrationError(f"{self.name}: predicted {value}, which is no positive number")
            self._known[key] = value
        return self._known[key]

    def given(self, fixed: Values) -> FitRow:
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


HUBER = 1.345
"""Huber's bound in standard deviations: 95 % efficiency under normal noise (Huber 1981, "Robust Statistics", 4.5)."""

DIFFERENCE = 1e-2
"""Step of the finite differences: above the grain of tiles and of the tuner's choices, below curvature."""

TOLERANCE = 1e-3
"""A step that lowers the loss by less than this share ends the search."""

SMALLEST_STEP = 1e-4
"""A step that changes all parameters by less than this ends the search."""

EVALUATIONS = 40
"""Points at which all rows are predicted, at most, for one scale of the residuals; those for slopes not counted."""


@dataclass(frozen=True)
class Fit:
    """The values *found* for *parameters* by *rows*.

    *covariance* (k x k) is that of the inner numbers (logarithms), in the order of *parameters*. *slopes* (n x k) are
    the derivatives of the residuals by them.
    """

    parameters: tuple[Parameter, ...]
    rows: tuple[FitRow, ...]
    found: dict[str, float]
    covariance: Array
    slopes: Array

    def deviation(self, name: str) -> float:
        """Return one standard deviation of the logarithm of the parameter *name*: its relative uncertainty."""
        place = [parameter.name for parameter in self.parameters].index(name)
        return float(max(0.0, self.covariance[place, place]) ** 0.5)

    @property
    def measured(self) -> tuple[FitRow, ...]:
        """The rows that are measurements."""
        return tuple(row for row in self.rows if not row.known)

    def errors(self) -> Array:
        """Return predicted / measured - 1 of each measurement."""
        return np.array([row.error(self.found) for row in self.measured])

    def without(self, left_out: Sequence[int]) -> dict[str, float]:
        """Return all parameters' values as fitted to the other rows, to first order: one Gauss-Newton step."""
        model = _Model(self.parameters, self.rows)
        problem = model.problem()
        at = model.inner(self.found)
        residuals = model.residuals(at)
        weights = problem.weights(residuals)
        weights[list(left_out)] = 0.0
        curvature = self.slopes.T @ (weights[:, None] * self.slopes) + np.diag(problem.precision**2)
        gradient = self.slopes.T @ (weights * residuals) + problem.precision**2 * (at - problem.expected)
        return model.values(at - np.linalg.pinv(curvature) @ gradient)


def least_squares(
    parameters: Sequence[Parameter],
    rows: Sequence[FitRow],
    begin: Values | None = None,
    tolerance: float = TOLERANCE,
) -> Fit:
    """Return the values of *parameters* with the least robust loss of *rows*.

    The search starts at *begin*, values of a former fit, or at the starts of the parameters, and ends with a step that
    lowers the loss by less than the share *tolerance*. Raises `CalibrationError`
    if there are no rows.
    """
    if not rows:
        raise CalibrationError(f"no rows to fit {', '.join(p.name for p in parameters)} to")
    model = _Model(tuple(parameters), tuple(rows))
    problem = model.problem()
    start = problem.expected if begin is None else model.inner(begin)
    at = problem.minimum(start, tolerance, SMALLEST_STEP, EVALUATIONS)
    values, slopes = model.values(at), model.slopes(at)
    covariance = _covariance(problem, model.residuals(at), slopes)
    return Fit(model.parameters, model.rows, values, covariance, slopes)


@dataclass(frozen=True)
class _Model:
    """The residuals of *rows* as functions of a point: the inner numbers of *parameters*."""

    parameters: tuple[Parameter, ...]
    rows: tuple[FitRow, ...]

    def problem(self) -> RobustProblem:
        """The problem that is to be minimised."""
        return RobustProblem(
            self.residuals,
            self.slopes,
            _scale,
            HUBER,
            expected=self.inner({p.name: p.start for p in self.parameters}),
            precision=np.array([0.0 if p.spread is None else 1.0 / p.spread for p in self.parameters]),
            relative=False,
            low=self.inner({p.name: p.low for p in self.parameters}),
            high=self.inner({p.name: p.high for p in self.parameters}),
        )

    def inner(self, values: Values) -> Array:
        """Return the point with *values*."""
        return np.array([p.inner(values[p.name]) for p in self.parameters])

    def values(self, at: Array) -> dict[str, float]:
        """Return the values at the point *at*, within the bounds of their parameters."""
        return {p.name: p.outer(float(inner)) for p, inner in zip(self.parameters, at, strict=True)}

    def residuals(self, at: Array) -> Array:
        """Return the residuals of the rows in units of their noise."""
        values = self.values(at)
        return np.array([row.residual(values) for row in self.rows])

    def slopes(self, at: Array) -> Array:
        """Return the derivatives of the residuals (n x k) by forward differences; backward at an upper bound."""
        columns, base = [], self.values(at)
        for place, parameter in enumerate(self.parameters):
            backward = parameter.outer(float(at[place]) + DIFFERENCE) >= parameter.high
            step = -DIFFERENCE if backward else DIFFERENCE
            moved = at.copy()
            moved[place] += step
            values = self.values(moved)
            used = [not row.uses or parameter.name in row.uses for row in self.rows]
            slopes = [row.slope(values, base) if own else 0.0 for row, own in zip(self.rows, used, strict=True)]
            columns.append(np.array(slopes) / step)
        return np.array(columns).T


def _covariance(problem: RobustProblem, residuals: Array, slopes: Array) -> Array:
    """Return the inverse curvature; the part of the rows is scaled by the variance of their residuals."""
    weights = problem.weights(residuals)
    rows, parameters = slopes.shape
    variance = max(1.0, float(np.sum(weights * residuals**2)) / max(1, rows - parameters))
    curvature = slopes.T @ (weights[:, None] * slopes) / variance + np.diag(problem.precision**2)
    return np.asarray(np.linalg.pinv(curvature))


def _scale(residuals: Array) -> float:
    """Return the robust standard deviation about 0, at least 1: that of the noise."""
    return max(1.0, NORMAL_MAD * float(np.median(np.abs(residuals))))


FOLDS = 5


@dataclass(frozen=True)
class HeldOut:
    """*errors* (n): predicted / measured - 1 of each of *rows*, by a fit without that row."""

    rows: tuple[FitRow, ...]
    errors: Array

    @property
    def median(self) -> float:
        """Median of the absolute errors."""
        return float(np.median(np.abs(self.errors)))

    @property
    def mean(self) -> float:
        """Mean of the absolute errors."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return float(np.max(np.abs(self.errors)))

    def by(self, group: str) -> dict[str | int, HeldOut]:
        """Return the rows of each value of *group*; rows without the group are left out."""
        parts: dict[str | int, list[int]] = {}
        for place, row in enumerate(self.rows):
            if group in row.groups:
                parts.setdefault(row.groups[group], []).append(place)
        return {
            value: HeldOut(tuple(self.rows[p] for p in places), self.errors[places])
            for value, places in sorted(parts.items(), key=lambda item: (str(type(item[0])), item[0]))
        }


def cross_validated(fit: Fit, part_of: Callable[[int, FitRow], object] = lambda number, _: number % FOLDS) -> HeldOut:
    """Return the errors of what *fit* measures, each by a fit without its part; *part_of*: (number, row) -> part.

    The fit without a part is one Gauss-Newton step from the whole fit. Its parameters then predict the part's rows in
    full, not along the slopes.
    """
    parts: dict[object, list[int]] = {}
    for number, row in enumerate(fit.rows):
        if not row.known:
            parts.setdefault(part_of(number, row), []).append(number)
    errors = np.zeros(len(fit.rows))
    for places in parts.values():
        values = fit.without(places)
        errors[places] = [fit.rows[place].error(values) for place in places]
    return HeldOut(fit.measured, errors[[not row.known for row in fit.rows]])


DIMENSIONS = {"s": "time", "bytes/s": "bandwidth"}
"""Dimensions of units that are printed with a prefix."""

FAR = 0.2
"""Rows with a larger relative error are listed."""


def fit_report(fit: Fit, held_out: Mapping[str, HeldOut]) -> str:
    """Return the report; *held_out*: errors of cross-validations by method."""
    whole = HeldOut(fit.measured, fit.errors())
    sections = [
        _parameters(fit),
        _errors("error on the fitted rows", whole),
        *(_errors(f"error on rows held out, {how}", errors) for how, errors in held_out.items()),
        *_far(whole),
    ]
    return "\n\n".join(sections)


def written(parameter: Parameter, value: float) -> str:
    """Return *value* of *parameter* with its unit."""
    dimension = DIMENSIONS.get(parameter.unit)
    return show(value, dimension) if dimension else f"{value:.4g} {parameter.unit}".strip()


def _parameters(fit: Fit) -> str:
    lines = [
        [p.name, written(p, fit.found[p.name]), f"+- {100 * fit.deviation(p.name):.1f} %", p.meaning]
        for p in fit.parameters
    ]
    return "parameters, with one standard deviation\n" + table(lines, align="lrrl")


def _errors(title: str, errors: HeldOut) -> str:
    header = ["", "rows", "mean", "median", "worst", "bias"]
    groups = dict.fromkeys(group for row in errors.rows for group in row.groups)
    parts = [(f"{group} {value}", part) for group in groups for value, part in errors.by(group).items()]
    return f"{title}, %\n" + table([_line(*one) for one in [("all", errors), *parts]], header, "lrrrrr")


def _line(name: str, errors: HeldOut) -> list[str]:
    bias = float(np.median(errors.errors))
    figures = (errors.mean, errors.median, errors.worst)
    return [name, str(len(errors.rows)), *(f"{100 * figure:.1f}" for figure in figures), f"{100 * bias:+.1f}"]


def _far(errors: HeldOut) -> Iterator[str]:
    lines = [
        [row.name, f"{100 * error:+.0f}"]
        for row, error in zip(errors.rows, errors.errors, strict=True)
        if abs(error) > FAR
    ]
    if lines:
        yield f"rows that the fit misses by more than {100 * FAR:.0f} %\n" + table(lines, align="lr")
