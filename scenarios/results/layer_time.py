"""The time of one layer, as in papers that report times of single layers."""

from __future__ import annotations

from collections import Counter

import numpy as np

from simulator.schedule import Op
from simulator.timeline import Timeline
from workloads.model import Model

BACKWARD = frozenset("RBIW")
"""Phases that papers count as backward; recomputation is among them (Korthikanti et al. 2022, table 4)."""


def layer_seconds(timeline: Timeline, model: Model) -> dict[str, float]:
    """Seconds of one layer and micro-batch, ``forward``, ``backward`` and ``both``.

    The mean over the layers of the most frequent kind of *model*, the first and last layer excluded, on the first rank
    that has any. Ops on the compute stream count: computation, and exchanges that block it.
    """
    inner = model.layers[1:-1] or model.layers
    ((commonest, _),) = Counter(layer.kind for layer in inner).most_common(1)
    names = {layer.name for layer in inner if layer.kind == commonest}
    for rank in timeline.gpu_ranks:
        if any(op.layer in names for op in timeline.schedule.program(rank).distinct()):
            return _means(timeline, rank, names)
    return {"forward": 0.0, "backward": 0.0, "both": 0.0}


def _means(timeline: Timeline, rank: int, names: set[str]) -> dict[str, float]:
    program, written = timeline.schedule.program(rank), timeline.of(rank)
    kind = program.column(lambda op: _kind(op, names), np.int64)[written.op]
    passes = program.column(lambda op: op.name.endswith(f".{op.layer}"))[written.op]
    seconds = np.bincount(kind, written.end - written.begin, 3)
    count = max(1.0, float(passes[kind == 1].sum()))
    means = {"forward": float(seconds[1]) / count, "backward": float(seconds[2]) / count}
    return means | {"both": sum(means.values())}


def _kind(op: Op, names: set[str]) -> int:
    """1 for the forward pass of the layers *names* on the compute stream, 2 for the backward pass, else 0."""
    if op.layer not in names or op.action is None or op.stream != "compute":
        return 0
    return 1 if op.action.phase == "F" else 2 if op.action.phase in BACKWARD else 0
