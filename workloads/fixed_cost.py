"""Fixed costs of the software stack, beside its kernels: for each step, and for each message of a pipeline.

In each step the host loads data, checks and logs the loss, and steps the schedulers. An asynchronous order pays this
once for each global batch: its further optimizer steps are kernels only. In a pipeline the host waits for
messages (Megatron-LM, p2p_communication.py, synchronises after ``batch_isend_irecv``), so the GPU waits for launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.kernel import measured
from simulator.schedule import Compute, Op, Program, Recv, Schedule


def fixed_costs(schedule: Schedule, step: float, exchange: float) -> Schedule:
    """*schedule* with *step* seconds at the end of each batch, and *exchange* before each op that waits for a message.

    Apply it last: programs then end with an op that has no other meaning.
    """
    if exchange:
        schedule = schedule.map_programs(lambda program: _with_exchange(program, exchange))
    return schedule.map_programs(lambda program: _with_step(program, step, schedule.batches)) if step else schedule


def _with_exchange(program: Program, seconds: float) -> Program:
    messages = {op.name for ops, _ in program.templates() for op in ops if isinstance(op, Recv) and not _is_notice(op)}

    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and not messages.isdisjoint(op.after):
            op = replace(op, kernels=(measured(seconds), *op.kernels))
        yield op

    return program.map_ops(change) if messages else program


def _with_step(program: Program, seconds: float, batches: int) -> Program:
    """*program* with *seconds* after the last optimizer step of each of *batches* global batches."""
    updates = [op.name for op in program.distinct() if _updates(op)]
    each = max(1, len(updates) // batches)
    last = set(updates[each - 1 :: each]) if batches > 1 else set(updates)

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in last:
            yield Compute(name=f"{op.name}.host", action=op.action, kernels=(measured(seconds),))

    return program.map_ops(change)


def _updates(op: Op) -> bool:
    return isinstance(op, Compute) and op.action is not None and op.action.phase == "O"


def _is_notice(op: Recv) -> bool:
    """True if *op* stands for the clock of a scheduler that recomputes late: no host waits for it."""
    return op.action is not None and op.action.phase == "R"
