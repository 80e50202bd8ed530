"""Memory as predicted and as measured: runs that fitted or went out of memory, and peaks where a source tells them.

A schedule's memory is found by program order, as `clustersim check` finds it, so that whole grids take a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from csv import DictReader
from dataclasses import dataclass, replace
from statistics import fmean

from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.loading import SHIPPED
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.yaml_and_json import read

PUBLISHED = SHIPPED / "published"


@dataclass(frozen=True)
class Source:
    """A published *scenario* with a table. *peak*: its column of peaks, GiB, and whether they are *reserved* bytes."""

    scenario: str
    peak: str = ""
    reserved: bool = False


SOURCES = (
    Source("hagemann_llama_layouts"),
    Source("alpa_intra_operator", "peak_GB"),
    Source("ultrascale_playbook_runs", "peak_GB", reserved=True),
    Source("fsdp_mpt_a100_40gb"),
    Source("fsdp_mpt_80gb"),
)
"""A run without a column `outcome` completed. Crashes of ultrascale_playbook_runs have no known cause: not judged."""

COMPLETED, OUT_OF_MEMORY = "ok", "out of memory"


@dataclass(frozen=True)
class Judged:
    """The *need* of a run, its *outcome*, and its measured and predicted *peaks*, if it has any."""

    need: MemoryNeed
    outcome: str
    peaks: tuple[float, float] | None


def memory() -> Iterator[str]:
    """Yield a line for each source."""
    for source in SOURCES:
        runs = list(_runs(source))
        failed = [run for run in runs if run.outcome == OUT_OF_MEMORY]
        ran = [run for run in runs if run.outcome == COMPLETED]
        found, alarms = sum(not run.need.fits for run in failed), sum(not run.need.fits for run in ran)
        right = (found + len(ran) - alarms) / (len(failed) + len(ran))
        line = f"{source.scenario:<30}{right:>8.1%} right: {found} of {len(failed)} out of memory, "
        errors = [run.peaks[1] / run.peaks[0] - 1 for run in ran if run.peaks]
        told = f"; peak {fmean(map(abs, errors)):.1%}, bias {fmean(errors):+.1%}" if errors else ""
        yield f"{line}{alarms} of {len(ran)} false alarms{told}"


def _runs(source: Source) -> Iterator[Judged]:
    scenario = Scenario.load(source.scenario, {"table.where": {}, "table.expect": {}})
    table = read(PUBLISHED / f"{source.scenario}.yaml").data["table"]
    with (PUBLISHED / table["file"]).open() as file:
        rows = {table["name"].format(**row): row for row in DictReader(file)}
    for name, variant in scenario.variants.items():
        built, row = replace(variant), rows[name]
        try:
            need = memory_need(built, built.schedule())
        except ScenarioError:  # more stages than layers, which crashed
            continue
        peaks = None
        if source.peak and row[source.peak]:
            predicted = need.tensors + (need.reserved["fragmentation"] if source.reserved else 0.0)
            peaks = float(row[source.peak]) * 2**30, predicted
        yield Judged(need, row.get("outcome", COMPLETED), peaks)
