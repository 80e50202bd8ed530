"""A sequence: the operations of one forward and backward pass over a chain; fixed ones, and what a program runs.

The kinds and their letters are those of Beaumont et al. 2019 (arXiv:1911.13214, table 1): a forward pass saves nothing
(F^n, the paper's F with an empty set), keeps its input as a checkpoint (F^c), or saves all that the backward pass needs
(F^e). Copies to and from the host are those of Beaumont, Eyraud-Dubois and Shilova 2021, "Efficient combination of
rematerialization and offloading for training DNNs" (NeurIPS).

The fixed methods *full*, *uniform* and *block* are those of Megatron-LM (``--recompute-granularity full
--recompute-method``, megatron/core/transformer/transformer_block.py, ``_checkpointed_forward``): they count the layers
between embedding and head, which are never run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from enum import Enum

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Copy
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program


class Kind(Enum):
    """What an operation does with its layer l; the value is a letter and a suffix."""

    FORWARD = "Fn"
    """Run the forward pass; read a_(l-1), make a_l, and free a_(l-1) unless a tape holds it."""
    CHECKPOINT = "Fc"
    """Run the forward pass, and keep the input a_(l-1)."""
    SAVE = "Fe"
    """Run the forward pass, keep the input a_(l-1), and save the tape of l, which holds a_l."""
    BACKWARD = "B"
    """Run the backward pass; free the tape of l, the gradient of a_l, and a_(l-1) unless a tape holds it."""
    TURN = "Loss BLoss"
    """The forward pass is complete, and the gradient of a_L arrives. Its layer is 0."""
    OFFLOAD = "O"
    """Begin to copy the tensor of l to the host; its bytes on the GPU are free when the copy ends."""
    PREFETCH = "P"
    """Begin to copy the tensor of l back; its bytes on the GPU are taken when the copy begins. What needs it waits."""
    WAIT = "W"
    """Wait until the copy of the tensor of l to the host has ended."""

    @property
    def is_forward(self) -> bool:
        """True for the three forward passes."""
        return self in (Kind.FORWARD, Kind.CHECKPOINT, Kind.SAVE)

    @property
    def is_transfer(self) -> bool:
        """True for a copy, which runs beside the computation, and for the wait for one."""
        return self in (Kind.OFFLOAD, Kind.PREFETCH, Kind.WAIT)


ACTIVATION, TAPE = "a", "t"
"""What a transfer copies: the activation a_l alone, or what only the backward pass of l needs in the end: its input
a_(l-1) and its tape without a_l."""


@dataclass(frozen=True, slots=True)
class ChainOperation:
    """One operation on *layer*, counted from 1; *tensor* (`ACTIVATION` or `TAPE`) is what a transfer copies."""

    kind: Kind
    layer: int = 0
    tensor: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.TURN:
            return str(self.kind.value)
        return f"{self.kind.value[0]}{self.layer}{self.kind.value[1:]}{self.tensor}"


TURN = ChainOperation(Kind.TURN)

_OPERATION = re.compile(r"Loss BLoss|\b(F)(\d+)([nce])\b|\b(B)(\d+)()\b|\b([OPW])(\d+)([at])\b")


@dataclass(frozen=True, slots=True)
class ChainSequence:
    """*operations* in order of issue. Transfers run beside the computation, one at a time for each direction.

    >>> str(ChainSequence.parse("F1c F2e Loss BLoss B2 F1e B1"))
    'F1c F2e Loss BLoss B2 F1e B1'
    """

    operations: tuple[ChainOperation, ...]

    def __iter__(self) -> Iterator[ChainOperation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    def __str__(self) -> str:
        return self.text()

    def text(self, turn: str = Kind.TURN.value) -> str:
        """In the notation of the lecture; *turn* is written for the point between forward and backward pass."""
        return " ".join(turn if one.kind is Kind.TURN else str(one) for one in self.operations)

    @property
    def turn(self) -> int:
        """The index of the turn. Raises `ScheduleError` if there is not exactly one."""
        found = [index for index, one in enumerate(self.operations) if one.kind is Kind.TURN]
        if len(found) != 1:
            raise ScheduleError(f"a sequence turns from forward to backward once, not {len(found)} times: {self}")
        return found[0]

    def forwards(self) -> int:
        """How many forward passes of a layer it runs, repetitions included."""
        return sum(one.kind.is_forward for one in self.operations)

    @classmethod
    def made(cls, operations: Iterable[ChainOperation]) -> ChainSequence:
        """The sequence of *operations*."""
        return cls(tuple(operations))

    @classmethod
    def parse(cls, text: str) -> ChainSequence:
        """Read what `str` prints. Raises `ScheduleError` for anything else."""
        left = _OPERATION.sub("", text).strip()
        if left:
            raise ScheduleError(f'"{left.split()[0]}" is no operation; write e.g. F1c, F2n, F3e, Loss BLoss, B3')
        return cls(tuple(_operation(match) for match in _OPERATION.finditer(text)))


def _operation(match: re.Match[str]) -> ChainOperation:
    if match.lastindex is None:
        return TURN
    letter, number, suffix = (group for group in match.groups() if group is not None)
    if letter in "OPW":
        return ChainOperation(Kind(letter), int(number), suffix)
    return ChainOperation(Kind(letter + suffix), int(number))


FIXED = ("full", "uniform", "block")
"""The methods that follow from the number of layers alone."""


def fixed_sequence(method: str, repeatable: Several[bool], num_layers: int = 1) -> ChainSequence:
    """Return the sequence of *method*, of `FIXED`, for a stage of layers that are *repeatable* or not.

    ``uniform``: groups of *num_layers* layers keep the input of the group and are run again together; the last group
    may be smaller. ``block``: the first *num_layers* layers keep their input and are run again one by one. ``full``:
    groups of one layer. Raises `ScheduleError` if the stage has fewer than *num_layers* layers.

    >>> str(fixed_sequence("uniform", [True] * 3, 2))
    'F1c F2n F3c Loss BLoss F3e B3 F1e F2e B2 B1'
    """
    own = [number for number, one in enumerate(repeatable, 1) if one]
    if num_layers > max(1, len(own)):
        raise ScheduleError(f"num_layers = {num_layers} is more than the {len(own)} layers of a stage")
    if method == "block":
        groups = [[number] for number in own[:num_layers]]
    else:
        width = num_layers if method == "uniform" else 1
        groups = [own[begin : begin + width] for begin in range(0, len(own), width)]
    return _of_groups(groups, len(repeatable))


def saving_all(length: int) -> ChainSequence:
    """Return the sequence without recomputation of *length* layers."""
    return _of_groups([], length)


def swapping_all(length: int) -> ChainSequence:
    """Return the sequence of *length* layers in which all tapes but the last are copied to the host and back.

    A layer runs while the tape of the one before it is copied.

    >>> str(swapping_all(2))
    'F1e O1t F2e W1t Loss BLoss P1t B2 B1'
    """
    forward: list[ChainOperation] = []
    backward: list[ChainOperation] = []
    for number in range(1, length + 1):
        forward.append(ChainOperation(Kind.SAVE, number))
        backward.insert(0, ChainOperation(Kind.BACKWARD, number))
        if number > 1:
            forward.append(ChainOperation(Kind.WAIT, number - 1, TAPE))
            backward.insert(0, ChainOperation(Kind.PREFETCH, number - 1, TAPE))
        if number < length:
            forward.append(ChainOperation(Kind.OFFLOAD, number, TAPE))
    return ChainSequence((*forward, TURN, *backward))


def _of_groups(groups: Several[Several[int]], length: int) -> ChainSequence:
    """The sequence in which each of *groups*, of neighbouring layers, is run again as a whole."""
    begins = {group[0]: group for group in groups}
    forward: list[ChainOperation] = []
    backward: list[list[ChainOperation]] = []
    number = 1
    while number <= length:
        group = begins.get(number, [])
        if group:
            forward += advance(group[0], group[-1])
        else:
            group = [number]
            forward.append(ChainOperation(Kind.SAVE, number))
        again = [ChainOperation(Kind.SAVE, one) for one in group] if number in begins else []
        backward.append([*again, *(ChainOperation(Kind.BACKWARD, one) for one in reversed(group))])
        number = group[-1] + 1
    return ChainSequence((*forward, TURN, *(operation for part in reversed(backward) for operation in part)))


def advance(first: int, last: int) -> Iterator[ChainOperation]:
    """Forward passes of layers *first* ... *last* that keep the input of the first and the output of the last."""
    yield ChainOperation(Kind.CHECKPOINT, first)
    yield from (ChainOperation(Kind.FORWARD, number) for number in range(first + 1, last + 1))


Pass = tuple[str, int]
"""(phase F, R or B, or O, W or P of a copy; number of the layer in its stage)."""


def observed(program: Program, stage: int, layers: Several[str], micro_batch: int = 0) -> ChainSequence:
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
    operations = [_observed_operation(passes, index) for index in range(len(passes))]
    return ChainSequence((*operations[:turn], TURN, *operations[turn:]))


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


def _observed_operation(passes: Several[Pass], index: int) -> ChainOperation:
    phase, number = passes[index]
    if phase == "B":
        return ChainOperation(Kind.BACKWARD, number)
    if phase in "OWP":
        forward = _observed_operation(passes, passes.index(("F", number)))
        saved = forward.kind is Kind.SAVE
        return (
            ChainOperation(Kind(phase), number, TAPE) if saved else ChainOperation(Kind(phase), number - 1, ACTIVATION)
        )
    later = [place for place in range(index + 1, len(passes)) if passes[place] == ("R", number)]
    if not later:
        return ChainOperation(Kind.SAVE, number)
    handed = any(one == ("R", number - 1) for one in passes[index + 1 : later[0]])
    return ChainOperation(Kind.FORWARD if handed else Kind.CHECKPOINT, number)
