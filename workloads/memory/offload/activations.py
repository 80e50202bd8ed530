"""Activations of chosen layers are in the memory of the host between their forward and their backward pass.

As soon as the forward pass of a layer ends, a copy to pinned host memory begins on a stream of its own. The memory of
the GPU is free when the copy ends. A layer's forward pass waits until at most *outstanding* copies of earlier layers
are under way: otherwise the GPU would hold all that has not been copied. The copy back begins on another stream,
*ahead* layer passes before the backward pass of the layer begins. With 1 and 1 these are the double buffers of
Transformer Engine (pytorch/cpu_offload.py) and of vDNN (Rhu et al. 2016, arXiv:1602.08124, section 3). A recomputed
layer keeps only its input, so that is what is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from simulator.errors import ScheduleError
from simulator.lookup import nearest
from simulator.schedule import Program, Schedule
from workloads.memory.offload.layer_passes import LayerPass, Place, layer_passes
from workloads.memory.offload.transfers import Transfer, with_transfers
from workloads.model import Model


@dataclass(frozen=True, slots=True)
class Buffers:
    """How far copies run apart from the computation.

    *outstanding*: copies to the host that may be under way when a forward pass begins. *ahead*: layer passes between
    the begin of a copy back and the backward pass that needs it.
    """

    outstanding: int = 1
    ahead: int = 1


def offloaded(schedule: Schedule, layers: Collection[str], buffers: Buffers = Buffers()) -> Schedule:
    """*schedule* with the activations of *layers* (names) on the host between forward and backward pass.

    Where the backward pass of a layer follows soon, as for the last layers, its activations stay: the copy back would
    begin as soon as the copy to the host ends.
    """
    chosen = frozenset(layers)
    return schedule.map_programs(lambda program: _offloaded(program, chosen, buffers))


def named_layers(model: Model, wanted: Sequence[str | int]) -> list[str]:
    """The names of the layers *wanted*, each a name or an index in order of the forward pass.

    Raises `ScheduleError` for a layer that *model* does not have, with the nearest names.
    """
    names = [layer.name for layer in model.layers]
    found: list[str] = []
    for one in wanted:
        if isinstance(one, int):
            if not 0 <= one < len(names):
                raise ScheduleError(f"layer {one}: {model.name} has the layers 0 to {len(names) - 1}")
            found.append(names[one])
        elif one in names:
            found.append(one)
        else:
            near = ", ".join(nearest(one, names)[:3])
            raise ScheduleError(f'"{one}" is no layer of {model.name}; the nearest of its {len(names)} are {near}')
    return found


def _offloaded(program: Program, layers: Collection[str], buffers: Buffers) -> Program:
    if program.on != "gpu" or not any(op.layer in layers for op in program.distinct()):
        return program
    whole = program.materialise()
    return with_transfers(whole, _transfers(layer_passes(whole.ops), layers, buffers))


def _transfers(passes: Sequence[LayerPass], layers: Collection[str], buffers: Buffers) -> Iterator[Transfer]:
    """The transfers of the *layers* whose backward pass comes late enough."""
    forwards = [number for number, one in enumerate(passes) if one.forward]
    backward: dict[Place, int] = {}
    for number, one in enumerate(passes):
        if not one.forward:
            backward.setdefault(one.place, number)
    for count, number in enumerate(forwards):
        one = passes[number]
        due = backward.get(one.place, 0)
        trigger = due - 1 - buffers.ahead
        # passes of two actions may alternate
        while trigger > number and passes[trigger].last >= passes[due].first:
            trigger -= 1
        if one.place[2] not in layers or one.kept <= 0.0 or trigger <= number + 1:
            continue
        limit = count + 1 + buffers.outstanding
        awaited_by = passes[forwards[limit]].first if limit < len(forwards) else None
        yield Transfer(one.place, one.kept, one.last, awaited_by, passes[trigger].last, passes[due].first)
