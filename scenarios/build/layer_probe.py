"""A probe: a program that computes each distinct layer of a model once, on the ranks of a scenario, so that the
duration of each layer alone is known.

It is simulated with the exchanges over inner axes such as ``tp``, on the ranks of the scenario.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from clustersim.scenarios.build.derived import Derived
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import SimulationRun
from clustersim.workloads.composition import on_layouts
from clustersim.workloads.memory.chain import LayerSeconds
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.memory.recompute import without_last
from clustersim.workloads.operators.by_coordinate import with_neighbours
from clustersim.workloads.operators.lowering import Overlap, lowered
from clustersim.workloads.operators.model import Layer, Model, OperatorLayer
from clustersim.workloads.parallelism._parallelism import Parallelism

PHASES = ("F", "B", "I", "W")

AGAIN = "R"
"""The part of the forward pass that selective recomputation runs again."""

STOPPED = "S"
"""The part of the forward pass that full recomputation runs again: without the end that its backward pass does not
need, if the software stops early."""


def content(layer: Layer) -> Hashable:
    """Return a key that is equal for layers of a model that differ in name only."""
    return (layer.kind, id(layer.operators)) if isinstance(layer, OperatorLayer) else layer.name


def distinct_layers(model: Model) -> dict[Hashable, Layer]:
    """Return the first layer of each `content`."""
    found: dict[Hashable, Layer] = {}
    for layer in model.layers:
        found.setdefault(content(layer), layer)
    return found


def overlaps(parts: Iterable[Parallelism], software: Software) -> dict[str, Overlap]:
    """Return how exchanges run beside products, by axis."""
    found: dict[str, Overlap] = {}
    for part in parts:
        found |= part.overlap(software)
    return found


def probe(layers: Sequence[Layer], samples: int, overlap: Mapping[str, Overlap], phases: Sequence[str]) -> Program:
    """Return a program that computes each phase of each of *layers*, one after the other.

    The first op of a phase is ``<action>.<layer>.begin``, without kernels; the last one is ``<action>.<layer>``.
    """
    return Program("probe", tuple(_probe_ops(layers, samples, overlap, phases)))


def with_stopped(
    program: Program, layers: Iterable[Layer], samples: int, overlap: Mapping[str, Overlap], *, early_stop: bool
) -> Program:
    """Return *program*, a probe, with what is `STOPPED` of each of *layers* if they stop early."""
    found = (op for layer in layers for op in _stopped(layer, samples, overlap)) if early_stop else ()
    return replace(program, ops=(*program.ops, *found))


def _probe_ops(
    layers: Sequence[Layer], samples: int, overlap: Mapping[str, Overlap], phases: Sequence[str]
) -> Iterator[Op]:
    for layer in layers:
        for phase in phases:
            action = Action(phase, 0, 0)
            ops = lowered(action, layer, samples, overlap)
            yield Compute(name=f"{ops[-1].name}.begin", kernels=(), action=action, layer=layer.name)
            yield from ops
        action = Action(AGAIN, 0, 0)
        kernels = layer.recomputable_forward(samples)
        yield Compute(name=f"{action}.{layer.name}.begin", kernels=(), action=action, layer=layer.name)
        yield Compute(name=f"{action}.{layer.name}", kernels=kernels, action=action, layer=layer.name)


def probed(program: Program, derived: Derived, parts: Sequence[Parallelism]) -> Schedule:
    """Return the schedule in which every rank runs *program*, a probe."""
    alone = Schedule(Mesh.regular({PIPELINE: 1}), (program,), (0,))
    schedule = on_layouts(alone, [derived.layouts[0]], list(parts))
    return with_neighbours(replace(schedule, program_of=(0,) * schedule.mesh.world_size))


def by_phase(program: Program, timeline: Timeline) -> tuple[Mapping[str, Mapping[str, float]], ...]:
    """Return by layer and phase of a probe, `AGAIN` and `STOPPED` too, the seconds, and the most bytes of buffers."""
    own = timeline.of(0)
    ends = np.empty(len(program.ops))
    ends[own.op] = own.end
    seconds: dict[str, dict[str, float]] = {}
    buffers: dict[str, dict[str, float]] = {}
    begin = 0
    for number, op in enumerate(program.ops):
        assert op.action is not None
        assert op.layer is not None
        if op.name.endswith(".begin"):
            begin = number
        elif op.name == f"{op.action}.{op.layer}":
            of_layer = seconds.setdefault(op.layer, dict.fromkeys((*PHASES, AGAIN), 0.0))
            of_layer[op.action.phase] = float(ends[number] - ends[begin])
            held = most_buffers(program.ops[begin : number + 1])
            buffers.setdefault(op.layer, {})["F" if op.action.phase == "F" else "I"] = held
    whole = {name: own for name, own in seconds.items() if not name.endswith(EARLY)}
    for name, of_layer in whole.items():
        of_layer[STOPPED] = seconds.get(f"{name}{EARLY}", of_layer)["F"]
    return whole, buffers


def most_buffers(ops: Sequence[Op]) -> float:
    """Return the most bytes of buffers that *ops* hold at once, in order of issue."""
    held = most = 0.0
    for op in ops:
        held += op.allocates.get("buffers", 0.0)
        most = max(most, held)
        held -= op.frees.get("buffers", 0.0)
    return most


EARLY = " stopped early"
"""Behind the name of a layer in the probe: its forward pass without the end that its backward pass does not need."""


DECIMALS = 12
"""Of durations in seconds: rounding errors must not choose between sequences that are equally fast."""


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
        program = probe(left, samples, overlap, ("F", "B"))
        program = with_stopped(program, left, samples, overlap, early_stop=software.early_stop)
        timeline = SimulationRun(probed(program, derived, parts), network, software).run()
        seconds, _ = by_phase(timeline.schedule.programs[0], timeline)
        for key, layer in layers.items():
            if key not in measured:
                own = seconds[layer.name]
                measured[key] = LayerSeconds(own["F"], own["B"], own[STOPPED])
    rounded = {key: LayerSeconds(*(round(one, DECIMALS) for one in own)) for key, own in measured.items()}
    return {layer.name: rounded[content(layer)] for layer in share.layers}


def _stopped(layer: Layer, samples: int, overlap: Mapping[str, Overlap]) -> Iterator[Op]:
    """The part of a probe that runs *layer* forward without its end, as a layer of another name."""
    name = f"{layer.name}{EARLY}"
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
