"""The simulated step as Kineto traces, one file a rank, which HolisticTraceAnalysis and Perfetto read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from scenarios.exporting import Export
from scenarios.exporting._ranks import shown_ranks
from scenarios.scenario import Scenario
from simulator.analysis.traces import kineto as trace
from simulator.timeline import Timeline


def kineto(scenario: Scenario) -> Export:
    """Return a trace for each GPU rank of the simulated *scenario*; of a large run one of each class of equal ranks."""
    timeline = scenario.run().timeline
    ranks, notes = shown_ranks(timeline)
    return Export({f"rank{rank}.json": partial(_write, timeline, rank) for rank in ranks}, notes, folder=True)


def _write(timeline: Timeline, rank: int, path: Path) -> None:
    path.write_bytes(trace.kineto(timeline, rank))
