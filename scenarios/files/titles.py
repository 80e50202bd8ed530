"""Titles of charts: what ran where, the step time and the MFU."""

from __future__ import annotations

from scenarios.build.names import cluster_title
from scenarios.results.result import Result
from scenarios.results.step_numbers import StepNumbers
from simulator.units import show


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
    gpus = len(result.timeline.gpu_ranks)
    return cluster_title(result.scenario, gpus)
