"""Lines that are common to the reports of several kinds of result."""

from __future__ import annotations

from scenarios.build.built import BuiltScenario
from scenarios.build.names import cluster_title, model_title
from simulator.timeline import Timeline


def title(scenario: BuiltScenario) -> str:
    """Return name and description."""
    description = scenario.specification.description
    return f"{scenario.name} - {' '.join(description.split())}" if description else scenario.name


def heading(scenario: BuiltScenario) -> str:
    """Return name, description, number of GPUs and cluster."""
    derived = scenario.derived
    idle = f"; {len(derived.idle)} idle" if derived.idle else ""
    return f"{title(scenario)}\n{derived.ranks} of {cluster_title(scenario, derived.gpus)}{idle}"


def batch(scenario: BuiltScenario) -> str:
    """Return the model, the software stack unless durations are given, and the batch with its division."""
    training, derived = scenario.specification.training, scenario.derived
    assert training is not None
    micro = "1 micro-batch" if derived.micro_batches == 1 else f"{derived.micro_batches} micro-batches"
    shares = "" if derived.by_stage else f"{derived.replicas} replicas x "
    cut = f"{shares}{micro} of {derived.micro_batch_size}"
    if derived.ranks > derived.replicas:
        cut += f"; {derived.described}"
    section = scenario.specification.model
    keys = scenario.stack_keys.items()
    changed = ", ".join(f"{key}: {value}" if isinstance(value, str) else f"{key} changed" for key, value in keys)
    software = f"{scenario.stack}{f' ({changed})' if changed else ''}"
    stack = "" if section is None or section.kind == "unit" else f", software {software}"
    return f"{model_title(scenario)}, {training.precision}{stack}, batch {training.global_batch_size} = {cut}"


def engine_line(timeline: Timeline) -> str:
    """Return which engine ran and how many ranks it simulated."""
    simulated, ranks = len(timeline.distinct_ranks), timeline.world_size
    which = f"all {ranks:,}" if simulated == ranks else f"{simulated:,} of {ranks:,}"
    equal = "" if simulated == ranks else "; each other rank does the same as one of them"
    return f"engine {timeline.engine}: {which} ranks simulated{equal}"
