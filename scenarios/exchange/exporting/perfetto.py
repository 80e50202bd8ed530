"""The simulated step for ui.perfetto.dev: slices, arrows of messages and of the critical path, counters."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from clustersim.scenarios.exchange.export import Export
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.rows import evenly
from clustersim.simulator.traces import perfetto_and_chrome as trace
from clustersim.simulator.traces.perfetto_and_chrome import MOST_SPANS

MOST_RANKS = 64
"""Processes that a viewer shows at once without scrolling for long."""


def perfetto(scenario: Scenario) -> Export:
    """Return the trace of the simulated *scenario*: all ranks, or one of each class of equal ranks of a large run."""
    timeline = scenario.run().timeline
    classes = [rank for rank in timeline.classes if rank in timeline.columns]
    small = timeline.ops <= MOST_SPANS and timeline.world_size <= MOST_RANKS and timeline.totals is None
    ranks = list(range(timeline.world_size)) if small else evenly(classes, MOST_RANKS)
    notes = () if small else (f"{len(ranks)} of {timeline.world_size:,} ranks: those with different spans",)
    return Export({f"{scenario.name}.pftrace": partial(_write, timeline, ranks)}, notes)


def _write(timeline: Timeline, ranks: list[int], path: Path) -> None:
    path.write_bytes(trace.perfetto(timeline, ranks, counted=True))
