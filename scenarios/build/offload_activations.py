"""Activations of a scenario on the host: which layers, as ``training.offload.activations`` has it."""

from __future__ import annotations

from scenarios.specification.training import Training
from simulator.schedule import Schedule
from workloads.memory.offload.activations import Buffers, named_layers, offloaded
from workloads.model import Model


def with_activations_offloaded(schedule: Schedule, training: Training, model: Model) -> Schedule:
    """Return *schedule* with the activations of the chosen layers of *model* on the host between their passes."""
    offload = training.offload
    if offload is None or offload.activations == "none":
        return schedule
    names = [layer.name for layer in model.layers]
    if isinstance(offload.activations, list):
        names = named_layers(model, offload.activations)
    return offloaded(schedule, names, Buffers(offload.outstanding, offload.ahead))
