"""Layouts of one training job as predicted and as measured: time, order, the plan that would be taken, and memory.

The published scenarios of grids simulate the runs that completed; here those that went out of memory run too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, median
from typing import Any

from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.loading import SHIPPED
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.yaml_and_json import read

PUBLISHED = SHIPPED / "published"


@dataclass(frozen=True)
class Grid:
    """The rows of a published *scenario* that meet *where*; the runs of one *group* of columns are one job."""

    scenario: str
    group: tuple[str, ...]
    where: Mapping[str, Any]
    peak: str = ""


GRIDS = (
    Grid("hagemann_llama_layouts", ("model", "kernel", "checkpointing"), {}),
    Grid("ultrascale_playbook_runs", ("nodes",), {"outcome": "ok"}, "peak_GB"),
    Grid("bloom_a100_scan", ("batch",), {}),
    Grid("alpa_intra_operator", ("gpus",), {}, "peak_GB"),
)


@dataclass(frozen=True)
class Run:
    """A run of a *group*: *measured* seconds and GiB, None if it did not complete or they are not told; *predicted*."""

    group: str
    measured: float | None
    peak: float | None
    predicted: float
    predicted_peak: float
    fits: bool
    failed: bool


def layouts() -> Iterator[str]:
    """Yield a line for each grid, and one for each of its jobs."""
    for grid in GRIDS:
        runs = list(_runs(grid))
        yield _whole(grid.scenario, runs)
        for name in dict.fromkeys(run.group for run in runs):
            timed = [run for run in runs if run.group == name and run.measured is not None]
            if len(timed) > 1:
                yield f"  {name:<52}{len(timed):>5}   tau {kendall(timed):>5.2f}   regret {regret(timed):>6.1%}"


def _runs(grid: Grid) -> Iterator[Run]:
    scenario = Scenario.load(grid.scenario, {"table.where": dict(grid.where), "table.expect": {}})
    table = read(PUBLISHED / f"{grid.scenario}.yaml").data["table"]
    with (PUBLISHED / table["file"]).open() as file:
        cells = {table["name"].format(**row): row for row in DictReader(file)}
    for name, one in scenario.variants.items():
        row = cells[name]
        try:
            summary = replace(one).run().summary()
        except SimulatorError:
            continue
        yield Run(
            ", ".join(row[column] for column in grid.group),
            float(row["step_time_s"]) if row["step_time_s"] else None,
            float(row[grid.peak]) if grid.peak and row[grid.peak] else None,
            summary["step_time_s"],
            summary["memory"]["allocator_bytes"] / 2**30,
            summary["memory"]["fits"],
            row.get("outcome", "ok") != "ok",
        )


def _whole(name: str, runs: Sequence[Run]) -> str:
    errors = [run.predicted / run.measured - 1 for run in runs if run.measured is not None]
    peaks = [abs(run.predicted_peak / run.peak - 1) for run in runs if run.peak is not None]
    failed, ran = [run for run in runs if run.failed], [run for run in runs if not run.failed]
    found, alarms = sum(not run.fits for run in failed), sum(not run.fits for run in ran)
    told = f"{name:<54}{len(errors):>5}{fmean(map(abs, errors)):>10.1%}{median(errors):>+9.1%}{fmean(errors):>+9.1%}"
    memory = f"   out of memory: {found} of {len(failed)} found, {alarms} of {len(ran)} false"
    return told + memory + (f"; peak {fmean(peaks):.1%}" if peaks else "")


def kendall(runs: Sequence[Run]) -> float:
    """Return Kendall's tau of measured and predicted times: 1 if all pairs are in the same order, -1 if none is."""
    pairs = [
        (one.predicted - two.predicted) * (_time(one) - _time(two))
        for one, two in combinations(runs, 2)
        if one.predicted != two.predicted and _time(one) != _time(two)
    ]
    return sum(1 if product > 0 else -1 for product in pairs) / len(pairs) if pairs else 1.0


def regret(runs: Sequence[Run]) -> float:
    """Return how much longer the run that is predicted to be the fastest took than the fastest one."""
    chosen = min((run for run in runs if run.fits), key=lambda run: run.predicted, default=runs[0])
    return _time(chosen) / min(map(_time, runs)) - 1


def _time(run: Run) -> float:
    assert run.measured is not None
    return run.measured
