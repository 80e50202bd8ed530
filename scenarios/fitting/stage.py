"""A stage fits some parameters by some rows; what it finds is fixed for the stages after it.

Kernels come first, then the software stack that launches them, then whole steps: each stage sees the rows that tell its
own parameters from all others best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scenarios.fitting.least_squares import Fit, least_squares
from scenarios.fitting.parameter import Parameter
from scenarios.fitting.row import Row


@dataclass(frozen=True)
class Stage:
    """*parameters* to fit by *rows*; *data* names the files or papers that the rows are from."""

    name: str
    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...]
    data: tuple[str, ...] = ()


def fitted(stages: Iterable[Stage]) -> dict[str, Fit]:
    """The fit of each stage by its name, one after the other."""
    fits: dict[str, Fit] = {}
    fixed: dict[str, float] = {}
    for stage in stages:
        fits[stage.name] = least_squares(stage.parameters, stage.rows, fixed)
        fixed = fits[stage.name].values
    return fits
