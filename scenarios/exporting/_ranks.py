"""The ranks of a timeline that get a file each in an export of traces."""

from __future__ import annotations

from simulator.analysis.traces.trace import MOST_SPANS
from simulator.timeline import Timeline

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
