"""The simulated step as Kineto traces, one file a rank, which HolisticTraceAnalysis and Perfetto read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from clustersim.scenarios.exchange.export import Export
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.traces import kineto as trace
from clustersim.simulator.traces.perfetto_and_chrome import MOST_SPANS

MOST_FILES = 1024
"""Files of a folder, one a rank, up to which every rank has its own."""


def shown_ranks(timeline: Timeline) -> tuple[list[int], tuple[str, ...]]:
    """Return the GPU ranks that get a file, and a note if they are not all: one of each class of equal ranks."""
    gpus = timeline.gpu_ranks
    kept = [rank for rank in timeline.classes if rank in timeline.columns and rank in set(gpus)]
    all_kept = sum(len(timeline.classes[rank]) for rank in kept) == len(gpus)
    if all_kept and timeline.ops <= MOST_SPANS and len(gpus) <= MOST_FILES:
        return list(gpus), ()
    note = f"{len(kept)} files for {len(gpus):,} ranks: each stands for ranks whose spans are equal"
    return kept, (note,)


def kineto(scenario: Scenario) -> Export:
    """Return a trace for each GPU rank of the simulated *scenario*; of a large run one of each class of equal ranks."""
    timeline = scenario.run().timeline
    ranks, notes = shown_ranks(timeline)
    return Export({f"rank{rank}.json": partial(_write, timeline, rank) for rank in ranks}, notes, folder=True)


def _write(timeline: Timeline, rank: int, path: Path) -> None:
    path.write_bytes(trace.kineto(timeline, rank))
