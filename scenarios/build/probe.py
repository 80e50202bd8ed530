"""A probe: a program that computes each distinct layer of a model once, so that its duration is known.

It is simulated with the exchanges over inner axes such as ``tp``, on the ranks of the scenario.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from scenarios.build.derived import Derived
from simulator.accelerator import Software
from simulator.schedule import Compute, Op, Program, Schedule
from simulator.schedule.mesh import Mesh
from simulator.schedule.order import Action
from simulator.timeline import Timeline
from workloads.composition import on_layouts
from workloads.compute import PIPELINE
from workloads.model import Layer, Model
from workloads.operators.layer import OperatorLayer
from workloads.operators.lowering import Overlap, lowered
from workloads.operators.shift import with_neighbours
from workloads.parallelism import Parallelism

PHASES = ("F", "B", "I", "W")

AGAIN = "R"
"""The part of the forward pass that selective recomputation runs again."""


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
    """Return by layer and phase of a probe the seconds and the most bytes of buffers."""
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
    return seconds, buffers


def most_buffers(ops: Sequence[Op]) -> float:
    """Return the most bytes of buffers that *ops* hold at once, in order of issue."""
    held = most = 0.0
    for op in ops:
        held += op.allocates.get("buffers", 0.0)
        most = max(most, held)
        held -= op.frees.get("buffers", 0.0)
    return most
