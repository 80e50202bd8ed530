"""The calibration file: what was fitted, how sure it is, and where it is from."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scenarios.calibrate.rank_placement import Outcome
from simulator.document.yaml_text import yaml_text
from simulator.network.transport.parameters import difference


def contents(outcome: Outcome, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The file of *outcome* as plain data; *provenance* is what is known of how it was measured."""
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
    """The largest relative error of a row, whichever way."""
    calibrated = outcome.calibrated
    return max(abs(s / m.seconds - 1) for m, s in zip(calibrated.measurements, calibrated.seconds, strict=True))


def provenance(backend: str, ranks: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """When and by what ranks measured; of the machine only what others could have too."""
    import torch

    machine = {"date": datetime.now(UTC).date().isoformat(), "backend": backend, "ranks": ranks}
    return {**machine, "torch": str(torch.__version__), "processor": platform.machine(), **more}


def elsewhere(ranks: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """When fitted, to what *ranks* measured at another time."""
    return {"date": datetime.now(UTC).date().isoformat(), "ranks": ranks, **more}


def write(data: Mapping[str, Any], path: Path) -> None:
    """*data* as YAML at *path*, folders made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml_text(dict(data)), encoding="utf-8")


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
