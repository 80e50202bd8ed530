"""A fit by tables: each CSV goes to the part of the model that it measures, and what is found to a calibration file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from scenarios.calibration.file import write
from scenarios.fitting import nccl
from simulator.document.validation import listed
from simulator.errors import CalibrationError

ALL_REDUCES = ({"gpu", "ngpus", "size_bytes", "in_place_us"}, {"nodes", "gpus_total", "size_bytes", "time_us"})
"""Columns of tables of all-reduces."""


def fit(paths: Sequence[Path], output: Path) -> str:
    """Fit what the tables at *paths* measure and write it to *output*; the report.

    Raises `CalibrationError` where a table is of no known kind.
    """
    for path in paths:
        columns = _columns(path)
        if not any(needed <= columns for needed in ALL_REDUCES):
            known = " or ".join(listed(sorted(needed)) for needed in ALL_REDUCES)
            raise CalibrationError(f"{path}: is no table that can be fitted; one of all-reduces has {known}")
    data, report = nccl.calibration(paths)
    write(data, output)
    return f"{report}\n\nwrote {output}\nnext: clustersim run SCENARIO --set network.transport={output}"


def _columns(path: Path) -> set[str]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return set(next(csv.reader(file), ()))
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CalibrationError(f"{path}: is not a text file") from None
