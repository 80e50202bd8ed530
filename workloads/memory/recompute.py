"""Recomputation runs part of the forward pass again, just before the backward pass, instead of keeping its results.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174). *selective*: core attention only;
its activations are large and cheap to compute (Korthikanti et al. 2022, arXiv:2205.05198, section 5). *full*: every
layer but embedding and head keeps only its input (Megatron-LM, ``--recompute-granularity full --recompute-method
uniform --recompute-num-layers 1``). Non-reentrant checkpoints of torch 2.1 and later stop early, as soon as all tensors
that the backward pass needs are there (torch.utils.checkpoint, ``set_checkpoint_early_stop``): the last product of a
transformer layer does not run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.errors import ScheduleError
from simulator.lookup import nearest
from simulator.schedule import Compute, Op, Program, Schedule
from simulator.schedule.order import Action
from workloads.memory.activations import with_activations
from workloads.model import Layer, Model
from workloads.operators.lowering import lowered_segments
from workloads.stages import ENDS

CHOICES = ("none", "selective", "full")
"""How much is recomputed."""


def recompute(
    schedule: Schedule, model: Model, how: str, *, micro_batch_size: int, early_stop: bool = False
) -> Schedule:
    """*schedule* with an R of each layer before its B or I; *how* is one of `CHOICES`.

    With *early_stop* an R of a whole layer ends where its backward pass has what it needs.

    *model* has its layers as one rank holds them. R waits for no gradient: it begins when it is the head of its stream,
    as in GPipe. Raises `ScheduleError` if the order recomputes by itself.
    """
    if how not in CHOICES:
        raise ScheduleError(f'unknown recomputation "{how}"; there are: {", ".join(nearest(how, [*CHOICES]))}')
    if how == "none":
        return schedule
    for program in schedule.programs:
        if any(op.action and op.action.phase == "R" for op in program.distinct()):
            raise ScheduleError(
                f"{program.role} recomputes in its order already; recompute = {how} would do it twice, try none"
            )
    layers = {layer.name: layer for layer in model.layers if layer.kind not in ENDS}

    def recomputed(program: Program) -> Program:
        again = program.by_micro_batch(
            lambda part: _with_recomputation(part, layers, how, micro_batch_size, early_stop)
        )
        return with_activations(again, model, micro_batch_size)

    return schedule.map_programs(recomputed)


def _with_recomputation(
    program: Program, layers: Mapping[str, Layer], how: str, micro_batch_size: int, early_stop: bool
) -> Program:
    forwards: defaultdict[tuple[Action, str], list[Op]] = defaultdict(list)
    for op in program.ops:
        if op.action and op.layer and op.action.phase == "F":
            forwards[op.action, op.layer].append(op)

    def change(op: Op) -> Iterator[Op]:
        if op.action and op.layer and op.layer in layers and op.action.phase in "BI":
            # only the first of several ops of a backward pass finds it
            forward = forwards.pop((op.action._replace(phase="F"), op.layer), [])
            kernels = layers[op.layer].recomputable_forward(micro_batch_size)
            if how == "full":
                left_out = layers[op.layer].unneeded_forward(micro_batch_size) if early_stop else 0
                yield from _again(_without_last(forward, left_out))
            elif forward and kernels:
                again = op.action._replace(phase="R")
                yield from lowered_segments(
                    again, op.layer, layers[op.layer].recomputable_segments(micro_batch_size), {}
                )
        yield op

    return program.map_ops(change)


def _again(forward: Sequence[Op]) -> Iterator[Op]:
    """The ops of a layer's forward pass, exchanges included, a second time; they wait for one another only."""
    renamed = {op.name: _in_r(op.name, op.action) for op in forward if op.action}
    for op in forward:
        if op.action:
            after = tuple(renamed[name] for name in op.after if name in renamed)
            yield replace(op, name=renamed[op.name], action=op.action._replace(phase="R"), after=after)


def _without_last(forward: Sequence[Op], kernels: int) -> list[Op]:
    """The ops of *forward* without the last so many *kernels*, and without the exchanges of their results.

    A computation that is left without kernels stays, for those that wait for it by its name.
    """
    kept: list[Op] = []
    for op in reversed(forward):
        cut = min(kernels, len(op.kernels)) if isinstance(op, Compute) else 0
        if isinstance(op, Compute):
            kernels -= cut
            kept.append(replace(op, kernels=op.kernels[: len(op.kernels) - cut]) if cut else op)
        elif not kernels or op.allocates:
            kept.append(op)
    names = {op.name for op in kept}
    return [replace(op, after=tuple(name for name in op.after if name in names)) for op in reversed(kept)]


def _in_r(name: str, action: Action) -> str:
    return str(action._replace(phase="R")) + name.removeprefix(str(action))
