"""Titles of charts, and lines that are common to the reports of several kinds of result."""

from __future__ import annotations

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.description import cluster_title, model_title
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.units import show


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


def chart_title(result: Result, of: str = "") -> str:
    """Return the title of a chart of *result*, a run of the file *of* if that is not the same: cluster, time and MFU.

    Of several runs the cluster is named if they share it.
    """
    if result.scenario.variants:
        places = {_place(one) for one in result.runs.values()}
        name = _name(result, of)
        return f"{name} on {places.pop()}" if len(places) == 1 else name
    parts = [place_title(result, of)]
    if isinstance(result, StepNumbers):
        parts.append(f"step {show(result.timeline.step_time, 'time')}")
        mfu = result.summary()["mfu"]
        parts += [f"MFU {mfu:.1%}"] if mfu else []
    return ", ".join(parts)


def place_title(result: Result, of: str = "") -> str:
    """Return the name of *result*, a run of the file *of* if that is not the same, and its cluster."""
    return f"{_name(result, of)} on {_place(result)}"


def _name(result: Result, of: str) -> str:
    name = result.scenario.name
    return f"{of}: {name}" if of and of != name else name


def _place(result: Result) -> str:
    gpus = len(result.timeline.gpu_ranks) if result.timelines else len(result.scenario.cluster().gpus)
    return cluster_title(result.scenario, gpus)
