"""Gradients are held from the backward pass of their layer to the optimizer step, which frees them.

``torch.optim.Optimizer.zero_grad`` sets gradients to None by default since torch 2.0, so that the backward pass of the
next step allocates them anew, layer by layer, while it frees activations: when activations are most, there are none.
Stacks with buffers of all gradients (Megatron-LM, core/distributed/param_and_grad_buffer.py) hold them all step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import updated_stages, weights_by_stage
from clustersim.workloads.data_parallel.sharded_states import added
from clustersim.workloads.operators.model import Model

GRADIENTS = "gradients"


def gradients_of_a_step(schedule: Schedule, model: Model) -> Schedule:
    """*schedule*, of one micro-batch a step, with gradients that backward passes allocate and the step frees.

    Each layer has its share of a rank's gradients, by its trained parameters.
    """
    return schedule.map_programs(lambda program: _gradients_of_a_step(program, model))


def _gradients_of_a_step(program: Program, model: Model) -> Program:
    held, steps = program.resident.get(GRADIENTS, 0.0), _last_steps(program)
    trained = trained_by_layer(program, model)
    total = sum(trained.values())
    if not held or not total or set(steps) != {stage for stage, _ in trained}:
        return program
    allocated = {place: held * count / total for place, count in trained.items() if count}
    freed: dict[str, float] = {}
    for (stage, _), nbytes in allocated.items():
        freed[steps[stage]] = freed.get(steps[stage], 0.0) + nbytes
    left = dict(allocated)

    def change(op: Op) -> Iterator[Op]:
        if op.action and op.layer and op.action.phase in "BW":
            if nbytes := left.pop((op.action.stage, op.layer), 0.0):
                op = changed(op, allocates=added(op.allocates, GRADIENTS, nbytes))
        elif op.name in freed:
            op = changed(op, frees=added(op.frees, GRADIENTS, freed[op.name]))
        yield op

    made = program.map_ops(change)
    return program if left else replace(made, resident={**program.resident, GRADIENTS: 0.0})


def _last_steps(program: Program) -> dict[int, str]:
    """The name of the last op of the optimizer step, by stage."""
    return {stage: name for name, stages in updated_stages(program).items() for stage in stages}


def trained_by_layer(program: Program, model: Model) -> dict[tuple[int, str], int]:
    """The trained parameters by (stage, layer).

    Those that layers share count with the last of them, whose backward pass is the first to make their gradient.
    """
    found = {
        (stage, weights.name): weights.trained.parameters
        for stage, several in weights_by_stage(program, model).items()
        for weights in several
    }
    first = next((place for place in found if place[1] == model.layers[0].name), None)
    last = next((place for place in reversed(found) if place[1] in model.sharing), None)
    if first and last and model.trains_tied:
        found[first] -= model.tied_parameters
        found[last] += model.tied_parameters
    return found
