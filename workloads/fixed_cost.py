"""The fixed cost of a step is what the host does once in it: load data, check and log the loss, step the schedulers.

It stands behind each optimizer step and keeps the GPU waiting, as a duration of the software stack.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.kernel import measured
from simulator.schedule import Compute, Op, Program, Schedule


def fixed_cost(schedule: Schedule, seconds: float) -> Schedule:
    """*schedule* with *seconds* behind the last optimizer step of each of its updates; to be applied last."""
    return schedule.weave(lambda program: _with_cost(program, seconds)) if seconds else schedule


def _with_cost(program: Program, seconds: float) -> Program:
    steps = {op.name for op in program.ops if isinstance(op, Compute) and op.action and op.action.phase == "O"}

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in steps:
            yield Compute(name=f"{op.name}.host", action=op.action, kernels=(measured(seconds),))

    return program.weave(change)
