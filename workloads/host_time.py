"""Host time of the software stack, beside its kernels: of each optimizer step, and of each message of a pipeline.

An optimizer step handles parameter tensors one by one: DeepSpeed checks each for overflow and copies it
(runtime/utils.py, ``CheckOverflow``; runtime/fp16/fused_optimizer.py, ``step``), Megatron-LM casts gradients and lists
tensors for its multi-tensor kernels (megatron/optimizer/optimizer.py, clip_grads.py). Beside that the host loads data
and logs the loss. An asynchronous order pays this once for each global batch: its further optimizer steps are kernels
only. In a pipeline the host waits for messages (Megatron-LM, p2p_communication.py, synchronises after
``batch_isend_irecv``), so the GPU waits for launches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Self

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import Operation, measured
from clustersim.simulator.schedule.ops import Compute, Delay, Op, Recv
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import updated_stages, weights_by_stage
from clustersim.workloads.operators.model import Model

EXCHANGE = Operation("host time of messages", "measured")


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds of the host in each optimizer step: *tensor* for each parameter tensor of a rank, *load* once."""

    tensor: float = 0.0
    load: float = 0.0

    @classmethod
    def of(cls, software: Software) -> Self:
        """That of *software*."""
        return cls(software.host_seconds_per_tensor, software.load_seconds)


def fixed_costs(schedule: Schedule, model: Model, host: HostTime, exchange: float) -> Schedule:
    """*schedule* with the time of the *host* after each optimizer step of a batch, and *exchange* for each message.

    *model* has its layers as one rank holds them. *exchange*: seconds before each op that waits for a message. Apply it
    last: programs then end with an op that has no other meaning.
    """
    if exchange:
        schedule = schedule.map_programs(lambda program: _with_exchange(program, exchange))
    if not (host.tensor or host.load):
        return schedule
    return schedule.map_programs(lambda program: _with_host(program, model, host, schedule.batches))


def _with_exchange(program: Program, seconds: float) -> Program:
    messages = {op.name for op in program.distinct(Recv) if not _is_notice(op)}
    waiting = {op.name for op in program.computations() if not messages.isdisjoint(op.after)}

    def change(op: Op) -> Iterator[Op]:
        assert isinstance(op, Compute)
        yield replace(op, kernels=(measured(seconds, operation=EXCHANGE), *op.kernels))

    return program.map_ops(change, waiting) if waiting else program


def _with_host(program: Program, model: Model, host: HostTime, batches: int) -> Program:
    """*program* with a delay after each update; of several *batches*, after the last update of each."""
    if program.on != "gpu":
        return program
    updates = updated_stages(program)
    names = list(updates)
    tensors = tensors_by_stage(program, model)
    if batches > 1:
        each = max(1, len(names) // batches)
        names = names[each - 1 :: each]
        updates = dict.fromkeys(names, frozenset(tensors))
    seconds = {name: host.tensor * _sum(tensors, updates[name]) for name in names}
    for name in names if batches > 1 else names[-1:]:
        seconds[name] += host.load

    def change(op: Op) -> Iterator[Op]:
        yield op
        if seconds[op.name]:
            yield Delay(name=f"{op.name}.host", action=op.action, stream=op.stream, seconds=seconds[op.name])

    return program.map_ops(change, seconds)


def tensors_by_stage(program: Program, model: Model) -> dict[int, int]:
    """The number of trained tensors that *program* holds of each of its stages of *model*."""
    return {
        stage: sum(len(one.trained.tensors) for one in own) for stage, own in weights_by_stage(program, model).items()
    }


def _sum(tensors: dict[int, int], stages: Collection[int]) -> int:
    return sum(tensors.get(stage, 0) for stage in stages)


def _is_notice(op: Op) -> bool:
    """True if *op* stands for the clock of a scheduler that recomputes late: no host waits for it."""
    return op.action is not None and op.action.phase == "R"
