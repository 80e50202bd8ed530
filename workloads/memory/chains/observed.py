"""The sequence that a program runs: read from its ops, whatever method or order has put them there."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several

from simulator.schedule import Copy, Program
from simulator.schedule.order import Action
from workloads.memory.chains.sequence import ACTIVATION, TAPE, TURN, Kind, Operation, Sequence

Pass = tuple[str, int]
"""(phase F, R or B, or O, W or P of a copy; number of the layer in its stage)."""


def observed(program: Program, stage: int, layers: Several[str], micro_batch: int = 0) -> Sequence:
    """Return what *program* runs of *stage*, which has *layers*, for one micro-batch; I counts as B.

    A run of a layer that a later one repeats keeps its input if that one reads it again, and nothing if the layer
    before is repeated just before. A copy to the host that no op waits for is waited for before the copy back.
    """
    numbers = {name: number for number, name in enumerate(layers, 1)}
    passes = _waiting(_passes(program, stage, numbers, micro_batch))
    turn = max(index for index, (phase, _) in enumerate(passes) if phase == "F") + 1
    # copies that begin when the forward pass ends belong to it
    while turn < len(passes) and passes[turn][0] in "OW":
        turn += 1
    operations = [_operation(passes, index) for index in range(len(passes))]
    return Sequence((*operations[:turn], TURN, *operations[turn:]))


def _passes(program: Program, stage: int, numbers: Mapping[str, int], micro_batch: int) -> list[Pass]:
    found: list[Pass] = []
    copies: dict[str, int] = {}
    for block in program.blocks:
        mine = block.micro_batch in (None, micro_batch)
        for op in block.ops:
            # copies stand where they begin, maybe among the ops of another micro-batch
            if not mine and not isinstance(op, Copy):
                continue
            action = block.action(op.action) if op.action else Action("O", stage)
            if not (op.layer and op.layer in numbers and action.phase in "FRBI" and action[1:] == (stage, micro_batch)):
                continue
            number = numbers[op.layer]
            if isinstance(op, Copy):
                found.append(("O" if op.to == "host" else "P", number))
                copies |= {op.name: number} if op.to == "host" else {}
                continue
            found += [("W", copies.pop(name)) for name in op.after if name in copies]
            phase = "B" if action.phase == "I" else action.phase
            if (phase, number) not in found[-1:]:
                found.append((phase, number))
    return found


def _waiting(passes: Several[Pass]) -> list[Pass]:
    """*passes*, in which each copy to the host is waited for before the copy back.

    Copies are made one after the other, so a wait stands before a copy that begins with it.
    """
    found: list[Pass] = []
    for phase, number in passes:
        if phase == "P" and ("W", number) not in found:
            found.append(("W", number))
        place = len(found)
        while phase == "W" and found[place - 1][0] == "O" and found[place - 1][1] != number:
            place -= 1
        found.insert(place, (phase, number))
    return found


def _operation(passes: Several[Pass], index: int) -> Operation:
    phase, number = passes[index]
    if phase == "B":
        return Operation(Kind.BACKWARD, number)
    if phase in "OWP":
        forward = _operation(passes, passes.index(("F", number)))
        saved = forward.kind is Kind.SAVE
        return Operation(Kind(phase), number, TAPE) if saved else Operation(Kind(phase), number - 1, ACTIVATION)
    later = [place for place in range(index + 1, len(passes)) if passes[place] == ("R", number)]
    if not later:
        return Operation(Kind.SAVE, number)
    handed = any(one == ("R", number - 1) for one in passes[index + 1 : later[0]])
    return Operation(Kind.FORWARD if handed else Kind.CHECKPOINT, number)
