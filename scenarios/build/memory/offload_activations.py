"""Activations of a scenario on the host, as ``training.offload.activations`` has it: chosen layers, or a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from scenarios.specification.offload import Offload
from scenarios.specification.training import Training
from simulator.engine.simulate import Simulation
from simulator.network.transport.communicator import Communicator
from simulator.schedule import Copy, Program, Schedule
from simulator.schedule.mesh import Mesh
from workloads.memory.chains.chain import Chain
from workloads.memory.chains.combined.combined import KARMA, POFO, SWAPPED, combined_together, least_plans
from workloads.memory.chains.combined.filling import Rules
from workloads.memory.chains.sequence import Sequence
from workloads.memory.offload.activations import Buffers, named_layers, offloaded
from workloads.model import Model

Plan = Callable[[tuple[Chain, ...], float, int], tuple[Sequence, ...]]
"""(chains of the stages of a GPU, budget in bytes, passes in flight) -> their sequences."""

SAMPLE = 1e9
"""Bytes of the copy of which the bandwidth is measured: the latency is then below 0.1 % of its time."""


def with_activations_offloaded(schedule: Schedule, training: Training, model: Model) -> Schedule:
    """Return *schedule* with the activations of the chosen layers of *model* on the host between their passes."""
    offload = training.offload
    if offload is None or offload.planned or offload.activations == "none":
        return schedule
    names = [layer.name for layer in model.layers]
    if isinstance(offload.activations, list):
        names = named_layers(model, offload.activations)
    return offloaded(schedule, names, Buffers(offload.outstanding, offload.ahead))


def planned_offload(offload: Offload | None, recompute: str, network: Communicator, ranks: int) -> Plan | None:
    """Return how sequences with copies are planned; None if *offload* does not ask for it.

    *recompute*: the method; with ``optimal`` layers may be run again. *ranks*: how many copy at a time.
    """
    if offload is None or not offload.planned:
        return None
    rules = _rules(offload, recompute)
    bandwidth = copy_bandwidth(network, ranks)

    @cache
    def plan(chains: tuple[Chain, ...], budget: float, in_flight: int) -> tuple[Sequence, ...]:
        return combined_together(chains, budget, bandwidth, in_flight, rules)

    return plan


def least_offload(offload: Offload, recompute: str, otherwise: Callable[[], Plan]) -> Plan:
    """Return how sequences are found that take little memory; *otherwise* if none of a few known ones fits."""
    rules = _rules(offload, recompute)

    def plan(chains: tuple[Chain, ...], budget: float, in_flight: int) -> tuple[Sequence, ...]:
        # bytes on the GPU do not depend on the bandwidth of copies
        return least_plans(chains, budget, SAMPLE, in_flight, rules) or otherwise()(chains, budget, in_flight)

    return plan


def _rules(offload: Offload, recompute: str) -> Rules:
    return KARMA if offload.activations == "karma" else POFO if recompute == "optimal" else SWAPPED


def copy_bandwidth(network: Communicator, ranks: int) -> float:
    """Return the bandwidth (bytes/s) of a copy between GPU and host while all *ranks* copy in the same direction."""
    seconds = 0.0
    for to in ("host", "gpu"):
        program = Program("copies", (Copy(name="copy", nbytes=SAMPLE, to=to),))
        schedule = Schedule(Mesh.regular({"all": ranks}), (program,), (0,) * ranks)
        seconds = max(seconds, Simulation(schedule, network).run().makespan)
    return SAMPLE / seconds
