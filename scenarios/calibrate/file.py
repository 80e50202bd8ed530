"""The calibration file: fitted values, their uncertainty, and their provenance."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scenarios.calibrate.rank_placement import Outcome
from simulator.document.yaml_text import yaml_text
from simulator.files import write_text
from simulator.network.transport.parameters import difference


def contents(outcome: Outcome, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the file for *outcome*, as plain data. *provenance*: how it was measured."""
    library, calibrated = outcome.library, outcome.calibrated
    version = {"library_version": library.version} if library.version else {}
    section = {"cluster": outcome.section} if outcome.section else {}
    errors = {
        "rows": len(calibrated.measurements),
        "median_error": _rounded(calibrated.fit.typical_error),
        "worst_error": _rounded(worst(outcome)),
    }
    return {
        "version": 1,
        "library": library.name,
        **version,
        "transport": difference(library, outcome.transport),
        **section,
        "uncertainty": {key: _rounded(error) for key, error in outcome.errors.items()},
        "provenance": {**provenance, **errors},
    }


def worst(outcome: Outcome) -> float:
    """Return the largest relative error of a row, in absolute value."""
    calibrated = outcome.calibrated
    return max(abs(s / m.seconds - 1) for m, s in zip(calibrated.measurements, calibrated.seconds, strict=True))


def provenance(backend: str, ranks: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the date and the ranks of a measurement. Of the machine it names only what other machines may share."""
    import torch

    machine = {"date": datetime.now(UTC).date().isoformat(), "backend": backend, "ranks": ranks}
    return {**machine, "torch": str(torch.__version__), "processor": platform.machine(), **more}


def elsewhere(ranks: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the date of a fit to earlier measurements of *ranks*."""
    return {"date": datetime.now(UTC).date().isoformat(), "ranks": ranks, **more}


def write(data: Mapping[str, Any], path: Path) -> None:
    """Write *data* as YAML to *path*, with missing folders."""
    write_text(path, yaml_text(dict(data)))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
