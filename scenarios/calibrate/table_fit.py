"""A fit to tables of measurements: communication or computation, by the columns or names of the CSV files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from clustersim.scenarios.calibrate.communication import write
from clustersim.scenarios.fitting import gpus, nccl, products, published_runs
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.files import UnreadableFile, read_rows
from clustersim.simulator.reading.validation import listed

ALL_REDUCES = (
    {"gpu", "ngpus", "size_bytes", "in_place_us"},
    {"nodes", "gpus_total", "size_bytes", "time_us"},
    {"size_bytes", "in_place_us"},
)
"""Columns of tables of all-reduces."""

COMMUNICATION, COMPUTATION, PRODUCTS = "communication", "computation", "matrix products"


def fit(paths: Sequence[Path], output: Path) -> str:
    """Fit the parameters that the tables at *paths* measure, write them to *output* and return the report.

    Tables of all-reduces give parameters of NCCL; tables of published scenarios give those of GPUs and software stacks;
    a table of products gives how GPUs and their generations run them. Raises `CalibrationError` if a table is of no
    known kind, or if the tables are of several kinds.
    """
    kinds = {path: _kind(path) for path in paths}
    if len(set(kinds.values())) > 1:
        given = ", ".join(f"{path.name} of {kind}" for path, kind in kinds.items())
        raise CalibrationError(f"one fit is of one kind of cost, not {given}; fit them one after the other")
    if PRODUCTS in kinds.values():
        if len(paths) > 1:
            raise CalibrationError(f"one fit of products is of one table, not {len(paths)}; join them")
        data, report = products.calibration(paths[0])
        write(data, output)
        return f"{report}\n\nwrote {output}; its values land in the GPUs of the catalogue"
    if COMPUTATION in kinds.values():
        data, report = gpus.calibration(paths)
        write(data, output)
        return f"{report}\n\nwrote {output}; each value lands in the file of the catalogue that it names"
    data, report = nccl.calibration(paths)
    write(data, output)
    return f"{report}\n\nwrote {output}\nnext: clustersim run SCENARIO --set network.transport={output}"


def _kind(path: Path) -> str:
    columns = _columns(path)
    if any(needed <= columns for needed in ALL_REDUCES):
        return COMMUNICATION
    if columns >= products.COLUMNS:
        return PRODUCTS
    if gpus.takes(path):
        return COMPUTATION
    if columns and all(re.fullmatch(r"[-+.\deE]*", column.strip()) for column in columns):
        raise CalibrationError(f"{path}: has no header; its first row must name the columns, such as size_bytes")
    known = " or ".join(listed(sorted(needed)) for needed in ALL_REDUCES)
    files = listed([*published_runs.PUBLICATIONS, gpus.PROFILES])
    raise CalibrationError(
        f"{path}: is no table that can be fitted; a table of all-reduces has the columns {known}, "
        f"one of products {listed(sorted(products.COLUMNS))}, one of computation is called {files}"
    )


def _columns(path: Path) -> set[str]:
    try:
        rows = list(read_rows(path))
    except UnreadableFile as error:
        raise CalibrationError(str(error)) from None
    return set(rows[0].cells) if rows else set()
