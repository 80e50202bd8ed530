"""The duration of each layer alone, from a simulation of all distinct layers on the ranks of the scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from scenarios.build.derived import Derived
from scenarios.build.probe import by_phase, content, distinct_layers, overlaps, probe, probed
from simulator.accelerator import Software
from simulator.engine.simulate import Simulation
from simulator.network.transport.communicator import Communicator
from simulator.schedule import Compute, Op, Program
from simulator.schedule.order import Action
from workloads.memory.chains.stage import LayerSeconds
from workloads.memory.recompute import without_last
from workloads.model import Layer, Model
from workloads.operators.lowering import Overlap, lowered
from workloads.parallelism import Parallelism

STOPPED = " stopped early"
"""Behind the name of a layer in the probe: its forward pass without the end that its backward pass does not need."""


def layer_seconds(
    share: Model, derived: Derived, parts: Sequence[Parallelism], software: Software, network: Communicator
) -> dict[str, LayerSeconds]:
    """Return the durations of the layers of *share* by name, exchanges of inner axes included, without contention.

    Layers of given durations (unit models, profiles) are not simulated.
    """
    layers, samples = distinct_layers(share), derived.micro_batch_size
    given = {key: _given(layer, samples) for key, layer in layers.items()}
    measured = {key: own for key, own in given.items() if own is not None}
    if len(measured) < len(layers):
        left = [layer for key, layer in layers.items() if key not in measured]
        overlap = overlaps(parts, software)
        ops = [*probe(left, samples, overlap, ("F", "B")).ops]
        for layer in left if software.early_stop else ():
            ops += _stopped(layer, samples, overlap)
        timeline = Simulation(probed(Program("probe", tuple(ops)), derived, parts), network, software).run()
        seconds, _ = by_phase(timeline.schedule.programs[0], timeline)
        for key, layer in layers.items():
            if key not in measured:
                own = seconds[layer.name]
                last = seconds.get(f"{layer.name}{STOPPED}", own)["F"]
                measured[key] = LayerSeconds(own["F"], own["B"], last)
    return {layer.name: measured[content(layer)] for layer in share.layers}


def _stopped(layer: Layer, samples: int, overlap: Mapping[str, Overlap]) -> Iterator[Op]:
    """The part of a probe that runs *layer* forward without its end, as a layer of another name."""
    name = f"{layer.name}{STOPPED}"
    forward = lowered(Action("F", 0, 0), layer, samples, overlap)
    names = {op.name: op.name.replace(layer.name, name) for op in forward}
    yield Compute(name=f"{names[forward[-1].name]}.begin", action=Action("F", 0, 0), layer=name, kernels=())
    for op in without_last(forward, layer.unneeded_forward(samples)):
        after = tuple(names[one] for one in op.after)
        yield replace(op, name=names[op.name], layer=name, after=after)


def _given(layer: Layer, samples: int) -> LayerSeconds | None:
    """Return the durations of a layer of measured kernels; None for any other."""
    kernels = {phase: [k for part in layer.segments(phase, samples) for k in part.kernels] for phase in "FB"}
    exchanges = any(part.exchanges for phase in "FB" for part in layer.segments(phase, samples))
    if exchanges or any(kernel.seconds is None for own in kernels.values() for kernel in own):
        return None
    forward, backward = (sum(kernel.seconds or 0.0 for kernel in own) for own in kernels.values())
    return LayerSeconds(forward, backward, forward)
