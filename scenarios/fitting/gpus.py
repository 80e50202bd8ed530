"""The fit of GPUs and software stacks as a calibration file: values, targets, covariance and provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scenarios.fitting import profiles, published
from scenarios.fitting.computation import PARAMETERS, V100_PARAMETERS
from scenarios.fitting.folds import FOLDS, HeldOut, cross_validated
from scenarios.fitting.least_squares import Fit, least_squares
from scenarios.fitting.parameter import Parameter
from scenarios.fitting.report import fit_report
from scenarios.fitting.row import Row
from scenarios.results.calibrated_range import Extent, joined

PROFILES = "layer_profiles_v100"
"""The stem of the file of profiles; all other files are those of `published.PUBLICATIONS`."""


def takes(path: Path) -> bool:
    """Return whether the file at *path* measures computation."""
    return path.stem == PROFILES or path.stem in published.PUBLICATIONS


def calibration(paths: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Return the calibration file of the measurements at *paths*, as plain data, and the report of the fit.

    Parameters on which no row depends are left out.
    """
    rows = [row for path in paths for row in rows_of(path)]
    used = frozenset().union(*(row.uses for row in rows))
    known = dict.fromkeys((*PARAMETERS, *V100_PARAMETERS, *profiles.PARAMETERS))
    fit = least_squares([p for p in known if p.name in used], rows)
    held_out = {f"one in {FOLDS} at a time": cross_validated(fit)}
    if len(paths) > 1:
        held_out["one source at a time"] = cross_validated(fit, lambda _, row: row.groups["data"])
    return contents(fit, held_out, paths), fit_report(fit, held_out)


def rows_of(path: Path) -> list[Row]:
    """Return the rows of *path*. Rows on V100 determine nothing of a software stack: the A100's, which are more, do."""
    if path.stem == PROFILES:
        return profiles.rows(path)
    return published.rows(path, V100_PARAMETERS if path.stem in published.ON_V100 else PARAMETERS)


def _covered(paths: Sequence[Path]) -> dict[str, Extent]:
    extents: dict[str, Extent] = {}
    for path in paths:
        extents = joined(extents, profiles.covered() if path.stem == PROFILES else published.covered(path))
    return dict(sorted(extents.items()))


def contents(fit: Fit, held_out: Mapping[str, HeldOut], paths: Sequence[Path]) -> dict[str, Any]:
    """Return the calibration file of *fit* as plain data; *held_out*: errors of cross-validations by method."""
    return {
        "version": 1,
        "parameters": {p.name: _entry(p, fit) for p in fit.parameters},
        "covariance": [[_rounded(float(x), 4) for x in line] for line in fit.covariance],
        "covered": {quantity: [float(low), float(high)] for quantity, (low, high) in _covered(paths).items()},
        "provenance": {
            "date": datetime.now(UTC).date().isoformat(),
            "data": [path.name for path in paths],
            "rows": len(fit.rows),
            "held_out": {how: _errors(errors) for how, errors in held_out.items()},
        },
    }


def _entry(parameter: Parameter, fit: Fit) -> dict[str, Any]:
    return {
        "value": _rounded(fit.found[parameter.name], 3),
        "uncertainty": _rounded(fit.deviation(parameter.name), 2),
        "unit": parameter.unit or "share",
        "meaning": parameter.meaning,
        "lands": list(parameter.lands),
    }


def _errors(errors: HeldOut) -> dict[str, dict[str, float]]:
    return {
        str(data): {
            "rows": len(part.rows),
            "mean": _rounded(part.mean, 2),
            "median": _rounded(part.median, 2),
            "worst": _rounded(part.worst, 2),
        }
        for data, part in errors.by("data").items()
    }


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
