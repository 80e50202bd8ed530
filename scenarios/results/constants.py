"""Constants of a software stack that make up much of a step, for the report to name."""

from __future__ import annotations

from collections.abc import Iterator

from scenarios.build.built import BuiltScenario
from simulator.schedule import Program, Recv
from simulator.units import show
from workloads.fixed_cost import tensors_by_stage

SHARE = 0.1
"""Share of a step above which a constant is named."""


def received(program: Program) -> int:
    """Return how many messages *program* receives in a step."""
    return sum(times * sum(isinstance(op, Recv) for op in ops) for ops, times in program.templates())


def large_constants(scenario: BuiltScenario, step: float) -> Iterator[str]:
    """Yield a line for each constant of the software stack that is more than `SHARE` of *step* (seconds)."""
    model, programs = scenario.model, scenario.schedule().programs
    if model is None or model.optimizer_seconds is not None:
        return
    tensors = max(sum(tensors_by_stage(one, model).values()) for one in programs)
    messages, software = max(map(received, programs)), scenario.software
    each = software.host_seconds_per_tensor
    terms = {
        "loading data and logging": (software.load_seconds, "once a step"),
        "the host's work for parameter tensors": (each * tensors, f"{tensors} x {show(each, 'time')}"),
        "waiting for messages": (
            software.host_seconds_per_message * messages,
            f"{messages} x {show(software.host_seconds_per_message, 'time')}",
        ),
    }
    for name, (seconds, how) in terms.items():
        if seconds > SHARE * step:
            yield f"{seconds / step:.0%} of the step is a constant of {scenario.stack}: {name}, {how}"
