"""Categories of runs, such as message sizes or numbers of GPUs, for which errors are shown separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.build.built import BuiltScenario

MIB = 2**20

SIZES = ((MIB, "below 1 MiB"), (16 * MIB, "1 to 16 MiB"), (256 * MIB, "16 to 256 MiB"), (None, "256 MiB and more"))
"""Sizes of messages: latency dominates up to 1 MiB, bandwidth from 256 MiB on."""

GPUS = ((9, "1 to 8"), (65, "9 to 64"), (513, "65 to 512"), (None, "513 and more"))

ORDER = tuple(name for _, name in (*SIZES, *GPUS))
"""The order of categories that have one; others are sorted by name."""

NOTABLE = 0.1
"""Share of the step above which exposed communication, copies or the bubble are a category."""


def categories(run: BuiltScenario, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the category of *run*, whose result is *summary*, by kind of category."""
    accelerator = run.cluster().accelerator(run.derived.devices[0]).name
    if run.specification.collective is not None:
        return _of_a_collective(run, summary) | {"GPU": accelerator}
    return _of_a_step(run, summary) | {"GPU": accelerator, "software": run.stack}


def _of_a_collective(run: BuiltScenario, summary: Mapping[str, Any]) -> dict[str, str]:
    cluster, devices = run.cluster(), run.derived.devices
    nodes = len({cluster.node_of(device) for device in devices})
    size = summary["collective"][0]["size_bytes"]
    return {
        "what": "collective",
        "message": _within(size, SIZES),
        "nodes": "one node" if nodes == 1 else "several nodes",
        "protocol": f"{summary['collective'][0]['algorithm']}, {summary['collective'][0]['protocol']}",
    }


def _of_a_step(run: BuiltScenario, summary: Mapping[str, Any]) -> dict[str, str]:
    training, parallelism, derived = run.specification.training, run.specification.parallelism, run.derived
    assert training is not None
    node = len(
        [gpu for gpu in run.cluster().gpus if run.cluster().node_of(gpu) == run.cluster().node_of(derived.devices[0])]
    )
    width = derived.degree("tp")
    wide = "1" if width == 1 else "within a node" if width <= node else "across nodes"
    return {
        "what": "training step",
        "GPUs": _within(derived.ranks, GPUS),
        "tensor parallel": wide,
        "pipeline": parallelism.schedule if derived.degree("pp") > 1 else "none",
        "data parallel": parallelism.data.label if derived.replicas > 1 or derived.by_stage else "none",
        "recompute": training.recompute_method,
        "beside computing": _beside(summary["breakdown_s"]),
    }


def _beside(breakdown: Mapping[str, float]) -> str:
    """Return the largest part of the step other than computation, if its share is notable."""
    total = sum(breakdown.values())
    lost = {key: value for key, value in breakdown.items() if key.startswith(("exposed", "bubble", "copy"))}
    most = max(lost, key=lambda key: lost[key])
    return most.replace("_", " ") if lost[most] >= NOTABLE * total else f"nothing above {NOTABLE:.0%}"


def _within(value: float, bounds: tuple[tuple[int | None, str], ...]) -> str:
    return next(name for bound, name in bounds if bound is None or value < bound)
