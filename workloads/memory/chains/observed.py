"""The sequence that a program runs: read from its ops, whatever method or order has put them there."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several

from simulator.schedule import Program
from simulator.schedule.order import Action
from workloads.memory.chains.sequence import TURN, Kind, Operation, Sequence

Pass = tuple[str, int]
"""(phase F, R or B, number of the layer in its stage)."""


def observed(program: Program, stage: int, layers: Several[str], micro_batch: int = 0) -> Sequence:
    """Return what *program* runs of *stage*, which has *layers*, for one micro-batch; I counts as B.

    A run of a layer that a later one repeats keeps its input if that one reads it again, and nothing if the layer
    before is repeated just before.
    """
    passes = _passes(program, stage, {name: number for number, name in enumerate(layers, 1)}, micro_batch)
    operations = [_operation(passes, index) for index in range(len(passes))]
    turn = max(index for index, (phase, _) in enumerate(passes) if phase == "F") + 1
    return Sequence((*operations[:turn], TURN, *operations[turn:]))


def _passes(program: Program, stage: int, numbers: Mapping[str, int], micro_batch: int) -> list[Pass]:
    found: list[Pass] = []
    for block in program.blocks:
        if block.micro_batch not in (None, micro_batch):
            continue
        for op in block.ops:
            action = block.action(op.action) if op.action else Action("O", stage)
            if op.layer and op.layer in numbers and action.phase in "FRBI" and action[1:] == (stage, micro_batch):
                phase = "B" if action.phase == "I" else action.phase
                if not found or found[-1] != (phase, numbers[op.layer]):
                    found.append((phase, numbers[op.layer]))
    return found


def _operation(passes: Several[Pass], index: int) -> Operation:
    phase, number = passes[index]
    if phase == "B":
        return Operation(Kind.BACKWARD, number)
    later = [place for place in range(index + 1, len(passes)) if passes[place] == ("R", number)]
    if not later:
        return Operation(Kind.SAVE, number)
    handed = any(one == ("R", number - 1) for one in passes[index + 1 : later[0]])
    return Operation(Kind.FORWARD if handed else Kind.CHECKPOINT, number)
