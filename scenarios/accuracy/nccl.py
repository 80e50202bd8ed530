"""The fit of NCCL to measured all-reduces as a calibration file: parameters that replace those of its own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scipy.linalg import block_diag

from clustersim.scenarios.accuracy.nccl_generations import LANDS
from clustersim.scenarios.accuracy.nccl_tests import TOLERANCE, laid, rows, stages
from clustersim.scenarios.accuracy.robust_fit import (
    FOLDS,
    Fit,
    FitRow,
    HeldOut,
    cross_validated,
    fit_report,
    least_squares,
)
from clustersim.simulator.network.library.nccl import tuning_model
from clustersim.simulator.network.library.transport_parameters import difference


def calibration(paths: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Return the calibration file of the tables at *paths*, as plain data, and the report of the fit."""
    fit = staged([row for path in paths for row in rows(path)])
    held_out = {
        f"one in {FOLDS} at a time": cross_validated(fit),
        "a sweep at a time": cross_validated(fit, lambda _, row: (row.groups["data"], row.groups["gpus"])),
    }
    return contents(fit, held_out, paths), fit_report(fit, held_out)


def staged(rows: Sequence[FitRow]) -> Fit:
    """Return the fit of `stages` to *rows*, each with the values of those before.

    A stage without rows, such as that of GPUs that were not measured, keeps its values. Raises `CalibrationError`
    without any rows.
    """
    fits: list[Fit] = []
    found: dict[str, float] = {}
    several = stages(rows)
    for parameters, part in [one for one in several if one[1]] or several[:1]:
        fits.append(least_squares(parameters, [row.given(found) for row in part], tolerance=TOLERANCE))
        found |= fits[-1].found
    parameters = tuple(one for fit in fits for one in fit.parameters)
    both = [row.given({name: found[name] for name in found}) for fit in fits for row in fit.rows]
    return Fit(
        parameters,
        tuple(both),
        found,
        block_diag(*(fit.covariance for fit in fits)),
        block_diag(*(fit.slopes for fit in fits)),
    )


def contents(fit: Fit, held_out: Mapping[str, HeldOut], paths: Sequence[Path]) -> dict[str, Any]:
    """Return the calibration file of *fit* as plain data; *held_out*: errors of cross-validations by method."""
    found = {p.name: _rounded(fit.found[p.name], 4) for p in fit.parameters}
    entries = {place.removeprefix(LANDS): p.name for p in fit.parameters for place in p.lands}
    return {
        "version": 1,
        "library": "nccl",
        "transport": transport_entries(found),
        "uncertainty": {entry: _rounded(fit.deviation(name), 2) for entry, name in entries.items()},
        "provenance": {
            "date": datetime.now(UTC).date().isoformat(),
            "data": [path.name for path in paths],
            "rows": len(fit.measured),
            "beside": {name: value for name, value in found.items() if name not in entries.values()},
            "held_out": {how: _errors(errors) for how, errors in held_out.items()},
        },
    }


def transport_entries(values: Mapping[str, float]) -> dict[str, Any]:
    """Return the section ``transport`` of a calibration file with the *values* of the parameters."""
    model = replace(tuning_model("2.10"), limits={})
    return difference(model, laid(model, {name: _rounded(value, 4) for name, value in values.items()}))


def _errors(errors: HeldOut) -> dict[str, float]:
    return {"mean": _rounded(errors.mean, 2), "median": _rounded(errors.median, 2), "worst": _rounded(errors.worst, 2)}


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
