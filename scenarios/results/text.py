"""Lines that are common to the reports of several kinds of result."""

from __future__ import annotations

from math import isfinite

from scenarios.build.built import BuiltScenario
from simulator.analysis import memory
from simulator.timeline import Timeline
from simulator.units import show


def title(scenario: BuiltScenario) -> str:
    """Return name and description."""
    description = scenario.specification.description
    return f"{scenario.name} - {' '.join(description.split())}" if description else scenario.name


def heading(scenario: BuiltScenario) -> str:
    """Return name, description, number of GPUs and cluster."""
    derived, cluster = scenario.derived, scenario.cluster()
    idle = f"; {len(derived.idle)} idle" if derived.idle else ""
    return f"{title(scenario)}\n{derived.ranks} of {derived.gpus} GPUs of {cluster.name}{idle}"


def batch(scenario: BuiltScenario) -> str:
    """Return the model, the batch and its division into replicas and micro-batches."""
    training, model, derived = scenario.specification.training, scenario.model, scenario.derived
    assert training is not None
    assert model is not None
    micro = "1 micro-batch" if derived.micro_batches == 1 else f"{derived.micro_batches} micro-batches"
    shares = "" if derived.by_stage else f"{derived.replicas} replicas x "
    cut = f"{shares}{micro} of {derived.micro_batch_size}"
    if derived.ranks > derived.replicas:
        cut += f"; {derived.described}"
    return f"{model.name}, {training.precision}, batch {training.global_batch_size} = {cut}"


def engine_line(timeline: Timeline) -> str:
    """Return which engine ran and how many ranks it simulated."""
    simulated, ranks = len(timeline.distinct_ranks), timeline.world_size
    which = f"all {ranks:,}" if simulated == ranks else f"{simulated:,} of {ranks:,}"
    equal = "" if simulated == ranks else "; each other rank does the same as one of them"
    return f"engine {timeline.engine}: {which} ranks simulated{equal}"


def memory_line(held: memory.Peak, capacity: float) -> str:
    """Return an upper bound of memory and the capacity of a GPU in one line."""
    if not isfinite(capacity):
        return f"at most {show(held.nbytes, 'size', 3)} a GPU"
    comparison = "fits" if held.nbytes <= capacity else "DOES NOT FIT"
    return f"at most {show(held.nbytes, 'size', 3)} of {show(capacity, 'size', 3)} a GPU: {comparison}"
