"""The result of one collective, measured at one or several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scenarios.files.plotted import PlottedResult
from scenarios.results.text import heading
from simulator.analysis import metrics, report
from simulator.analysis.network.cables import cable_load
from simulator.analysis.text import indented
from simulator.timeline import Timeline
from simulator.units import show


@dataclass(frozen=True, repr=False)
class CollectiveResult(PlottedResult):
    """One collective measured at one or several sizes."""

    _timeline: Timeline
    wall_seconds: float
    host_seconds: Mapping[float, float] = field(default_factory=dict)
    """By size, the time in which one process launches it on all GPUs, if one does."""

    def in_short(self) -> str:
        """Return the kind, the ranks and the greatest bus bandwidth."""
        rows, kind = self.rows(), self.scenario.specification.collective.kind  # type: ignore[union-attr]
        most = max(row["busbw"] for row in rows)
        return f"{kind} over {self._timeline.world_size:,} ranks, busbw up to {show(most, 'bandwidth')}"

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name."""
        return {self.scenario.name: self._timeline}

    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them."""
        return {
            "name": self.scenario.name,
            "collective": self.rows(),
            **({"cables": load.summary()} if (load := cable_load(self._timeline)) else {}),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each size: bytes, seconds, algbw and busbw in bytes/s, algorithm and protocol."""
        benchmark, timeline = self.scenario.specification.collective, self._timeline
        assert benchmark is not None
        rows = []
        for number, size in enumerate(benchmark.size):
            columns = timeline.columns.values()
            begins, ends = ([getattr(own, name)[own.op == number] for own in columns] for name in ("begin", "end"))
            elapsed = float(np.concatenate(ends).max() - np.concatenate(begins).min())
            seconds = max(elapsed, self.host_seconds.get(size, 0.0))
            algorithm, protocol = timeline.algorithms.get(("all", benchmark.kind, size), ("", ""))
            rows.append(
                {
                    "size_bytes": size,
                    "time_s": seconds,
                    "algbw": metrics.algbw(size, seconds),
                    "busbw": metrics.busbw(benchmark.kind, size, timeline.world_size, seconds),
                    "algorithm": algorithm,
                    "protocol": protocol,
                }
            )
        return rows

    def report(self) -> str:
        """Return the text that `run` prints."""
        benchmark = self.scenario.specification.collective
        assert benchmark is not None
        network = self.scenario.specification.network
        title = f"{benchmark.kind} over {self.scenario.derived.ranks} ranks, transport {network.transport}"
        title += f", {network.fidelity}, engine {self._timeline.engine}"
        return f"{heading(self.scenario)}\n\n{title}\n{indented(self.measured())}"

    def measured(self) -> str:
        """Return the table, and how uneven the cables between switches are if the user chose their routing."""
        load = cable_load(self._timeline)
        return f"{self.table()}\n{load.told()}" if load else self.table()

    def table(self) -> str:
        """Return the rows as a table with the columns of nccl-tests."""
        rows = [
            report.Measurement(
                row["size_bytes"], row["time_s"], row["algbw"], row["busbw"], row["algorithm"], row["protocol"]
            )
            for row in self.rows()
        ]
        return report.collective_table(rows)
