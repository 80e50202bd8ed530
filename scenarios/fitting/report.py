"""The report of a fit: parameters with uncertainty, errors by group, and errors of rows held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from scenarios.fitting.folds import HeldOut
from scenarios.fitting.least_squares import Fit
from scenarios.fitting.parameter import Parameter
from simulator.analysis.text import table
from simulator.units import show

DIMENSIONS = {"s": "time", "bytes/s": "bandwidth"}
"""Dimensions of units that are printed with a prefix."""

FAR = 0.2
"""Rows with a larger relative error are listed."""


def fit_report(fit: Fit, held_out: Mapping[str, HeldOut]) -> str:
    """Return the report; *held_out*: errors of cross-validations by method."""
    whole = HeldOut(fit.rows, fit.errors())
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
