"""Copies in 16 bits of trained weights in fp32, which autocast makes in each forward pass.

The copies are outputs of autograd's casts: a product saves its copy for the backward pass, and nothing else holds one
(ATen/autocast_mode.cpp, ``cached_cast``; its cache is cleared where autocast ends, behind the forward pass). So they
are held from the forward to the backward pass of their layer, and when the optimizer runs there are none. A layer that
is recomputed saves nothing the first time: its copies stay in the cache until the forward pass of the model ends, and
are made anew. A table of an embedding is looked up in fp32. With the backward pass under autocast too, which torch
advises against, the cache would hold all to the end of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients_of_a_step import trained_by_layer
from clustersim.workloads.data_parallel.sharded_states import added
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.stages import ENDS

PARAMETERS = "parameters"

Place = tuple[int, str]
"""(stage, layer)."""


def weight_casts(schedule: Schedule, model: Model) -> Schedule:
    """*schedule* of *model* in 16 bits with its trained parameters held once, in fp32, and cast in each forward pass.

    *schedule* holds a copy in 16 bits of every parameter all step.
    """
    return schedule.map_programs(lambda program: _weight_casts(program, model))


def cast_bytes(model: Model, layers: Mapping[Place, int]) -> dict[Place, float]:
    """Return the bytes of the copies by layer; *layers*: their trained parameters."""
    looked_up = {layer.name for layer in model.layers if layer.kind == ENDS[0]}
    return {
        place: float(BYTES[model.precision] * count)
        for place, count in layers.items()
        if count and place[1] not in looked_up
    }


def _weight_casts(program: Program, model: Model) -> Program:
    trained = trained_by_layer(program, model)
    copies = cast_bytes(model, trained)
    held = float(BYTES[model.precision] * sum(trained.values()))
    if not copies or program.resident.get(PARAMETERS, 0.0) < held:
        return program
    made = program.by_micro_batch(lambda part: _cast_in_passes(part, copies))
    return replace(made, resident={**made.resident, PARAMETERS: made.resident[PARAMETERS] - held})


def _cast_in_passes(program: Program, copies: Mapping[Place, float]) -> Program:
    """*program*, the ops of one micro-batch, with *copies* made and freed."""
    first: dict[tuple[str, Place], str] = {}
    last: dict[tuple[str, Place], str] = {}
    ends: dict[int, str] = {}
    for op in program.ops:
        if op.action and op.layer and op.action.phase in "FRBIW":
            key = op.action.phase, (op.action.stage, op.layer)
            first.setdefault(key, op.name)
            last[key] = op.name
            if op.action.phase == "F":
                ends[op.action.stage] = op.name
    allocated: dict[str, float] = {}
    freed: dict[str, float] = {}
    for place, nbytes in copies.items():
        if ("F", place) not in first:
            continue
        backward = next(last[phase, place] for phase in "WBI" if (phase, place) in last)
        moments = [(first["F", place], backward)]
        if ("R", place) in first:
            moments = [(first["F", place], ends[place[0]]), (first["R", place], backward)]
        for begin, end in moments:
            allocated[begin] = allocated.get(begin, 0.0) + nbytes
            freed[end] = freed.get(end, 0.0) + nbytes

    def change(op: Op) -> Iterator[Op]:
        if nbytes := allocated.get(op.name, 0.0):
            op = changed(op, allocates=added(op.allocates, PARAMETERS, nbytes))
        if nbytes := freed.get(op.name, 0.0):
            op = changed(op, frees=added(op.frees, PARAMETERS, nbytes))
        yield op

    return program.map_ops(change)
