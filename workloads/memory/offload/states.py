"""Optimizer states, gradients and parameters off the GPU: ZeRO-Offload, ZeRO-Infinity, FSDP's and Megatron's offload.

Ren et al. 2021 (arXiv:2101.06840): gradients leave the GPU in the backward pass, cores of the host update the
parameters, and these come back, 4 bytes per parameter in all in 16 bits. Sharded over d ranks each rank moves and
updates 1/d. Rajbhandari et al. 2021 (arXiv:2104.07857): parameters and optimizer states may be on the host or on NVMe
drives. The pass applies to a complete schedule, with or without data parallelism.

Not modelled: the check of the norm of gradients on the host, which for ZeRO-3 reads them once more; contention of the
update with copies for the memory of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.schedule import Compute, Program, Schedule
from simulator.schedule.program import Block, TemplatedOps
from workloads.memory.offload.gradients import with_gradient_copies
from workloads.memory.offload.parameters import with_fetches
from workloads.memory.offload.places import BEGIN, Held, Places, held_by, with_places
from workloads.memory.offload.update import with_host_updates
from workloads.memory.optimizer import Optimizer
from workloads.model import Model
from workloads.operators.parameter import REPLICAS
from workloads.sharding.groups import PARAMETERS, SHARD


def offloaded_states(
    schedule: Schedule, model: Model, places: Places, *, optimizer: Optimizer, gradient_dtype: str | None = None
) -> Schedule:
    """Return *schedule* with its states where *places* has them.

    *model* has its layers as one rank holds them. Raises `ScenarioError` for an optimizer without states, and
    for an asynchronous pipeline order.
    """
    if model.optimizer_seconds is not None:
        raise ScenarioError("the model has a measured time of its optimizer, whose parameters and states are not known")
    if schedule.batches > 1:
        raise ScenarioError(
            "needs one update of the weights, after all of a simulation: take a pipeline order that flushes, such as "
            "1f1b, and gradients that are reduced in each step"
        )
    named = (weights.reduced_over[-1] for layer in model.layers for weights in layer.tensors)
    axes = [axis for axis in dict.fromkeys((REPLICAS, SHARD, PARAMETERS, *named)) if axis in schedule.mesh.axes]
    degrees = {axis: schedule.degrees(axis) for axis in axes}
    programs = []
    for number, program in enumerate(schedule.programs):
        held = held_by(program, model, optimizer, gradient_dtype or model.precision, places)
        own = {axis: several[number] for axis, several in degrees.items() if several[number] > 1}
        programs.append(program if held is None else _offloaded(program, held, places, own))
    return replace(schedule, programs=tuple(programs))


def _offloaded(program: Program, held: Held, places: Places, degrees: Mapping[str, int]) -> Program:
    """Return *program* with its states moved; *degrees*: the number of shards by axis."""
    copying, last_copy = with_gradient_copies(program, held, places)
    if places.delayed or places.parameters != "gpu":
        begin = Block((Compute(name=BEGIN, kernels=()),))
        copying = copying.with_templated_ops(TemplatedOps([begin, *copying.blocks]))
    if places.parameters != "gpu":
        copying = with_fetches(copying, held, places, degrees)
    return with_places(with_host_updates(copying, held, places, last_copy), held, places)
