"""What torch's reentrant checkpoints hold where FSDP shards frozen weights: inputs of layers, and their gradients.

A reentrant checkpoint runs its layer again from a detached input, a leaf of autograd that gets the gradient of the
input (torch/utils/checkpoint.py, ``CheckpointFunction.backward``). A unit of FSDP with frozen parameters has no
gradient of its own to tell when its backward pass is done, so that FSDP puts a hook on the inputs of the unit
(torch/distributed/fsdp/_runtime_utils.py, ``_register_post_backward_reshard_only_hook``). The hook refers to the leaf,
and the leaf to its gradient, until FSDP removes all hooks behind the backward pass
(``_post_backward_final_callback``). So the inputs of all layers, which other backward passes free one by one, stay,
and as many gradients come. Checkpoints that are not reentrant have no leaves, and units with trained parameters have
other hooks; neither holds anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.operators.model import Model

ACTIVATIONS = "activations"

COPIES = 2
"""Tensors of the size of a layer's input that its backward pass leaves behind: the input and its gradient."""


def inputs_held(schedule: Schedule, model: Model, micro_batch_size: int) -> Schedule:
    """*schedule* with inputs of recomputed layers and their gradients held to the end of a backward pass.

    Each layer is recomputed on its own. *model* has its layers as one rank holds them. The last op of the backward pass
    of a stage frees all.
    """
    given = {two.name: one.input_bytes_of_next(micro_batch_size) for one, two in pairwise(model.layers)}
    return schedule.map_programs(lambda program: program.by_micro_batch(lambda part: _inputs_held(part, given)))


def _inputs_held(program: Program, given: Mapping[str, float]) -> Program:
    """*program*, the ops of one micro-batch; *given*: bytes of the input of each layer."""
    ops = list(program.ops)
    again = {(op.action.stage, op.layer) for op in ops if op.action and op.action.phase == "R"}
    held: dict[int, float] = {}
    last: dict[int, str] = {}
    for op in ops:
        if op.action and op.layer and op.action.phase == "B":
            last[op.action.stage] = op.name
            if _ends(op, again):
                held[op.action.stage] = held.get(op.action.stage, 0.0) + COPIES * given[op.layer]
    freed = {last[stage]: nbytes for stage, nbytes in held.items()}

    def change(op: Op) -> Iterator[Op]:
        more = 0.0
        if _ends(op, again):
            assert op.layer
            more -= COPIES * given[op.layer]
        more += freed.get(op.name, 0.0)
        yield _freeing(op, more) if more else op

    return program.map_ops(change)


def _ends(op: Op, again: Collection[tuple[int, str | None]]) -> bool:
    """True if *op* ends the backward pass of a layer that ran *again*."""
    if not (op.action and op.action.phase == "B" and op.frees.get(ACTIVATIONS)):
        return False
    return (op.action.stage, op.layer) in again


def _freeing(op: Op, nbytes: float) -> Op:
    """*op* with *nbytes* more of activations freed; of less than none it allocates the rest."""
    freed = op.frees.get(ACTIVATIONS, 0.0) + nbytes
    allocated = op.allocates.get(ACTIVATIONS, 0.0) + max(0.0, -freed)
    return changed(
        op,
        frees={**op.frees, ACTIVATIONS: max(0.0, freed)},
        allocates={**op.allocates, **({ACTIVATIONS: allocated} if allocated else {})},
    )
