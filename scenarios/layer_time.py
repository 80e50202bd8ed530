"""The time of one layer, as papers that time single layers tell it."""

from __future__ import annotations

from collections import Counter

from simulator.timeline import Timeline
from workloads.model import Model

BACKWARD = frozenset("RBIW")
"""Phases that papers count as backward; recomputation is among them (Korthikanti et al. 2022, table 4)."""


def layer_seconds(timeline: Timeline, model: Model) -> dict[str, float]:
    """Seconds of one layer and micro-batch, ``forward``, ``backward`` and ``both``.

    It is the mean over the layers of the kind that *model* has most of between its ends, on the first rank with some.
    Counted is what stands on the compute stream: computation, and exchanges that block it.
    """
    inner = model.layers[1:-1] or model.layers
    ((commonest, _),) = Counter(layer.kind for layer in inner).most_common(1)
    names = {layer.name for layer in inner if layer.kind == commonest}
    for rank in timeline.gpu_ranks:
        if any(op.layer in names for op in timeline.schedule.program(rank).ops):
            return _means(timeline, rank, names)
    return {"forward": 0.0, "backward": 0.0, "both": 0.0}


def _means(timeline: Timeline, rank: int, names: set[str]) -> dict[str, float]:
    seconds, passes = {"forward": 0.0, "backward": 0.0}, set()
    for span in timeline.spans(rank):
        op = span.op
        if op.layer not in names or op.action is None or op.stream != "compute":
            continue
        if op.action.phase == "F":
            seconds["forward"] += span.end - span.begin
            passes.add((op.layer, op.action.micro_batch, span.step))
        elif op.action.phase in BACKWARD:
            seconds["backward"] += span.end - span.begin
    means = {name: total / max(1, len(passes)) for name, total in seconds.items()}
    return means | {"both": sum(means.values())}
