"""A sequence: the operations of one forward and backward pass over a chain, in order.

The kinds and their letters are those of Beaumont et al. 2019 (arXiv:1911.13214, table 1): a forward pass saves nothing
(F^n, the paper's F with an empty set), keeps its input as a checkpoint (F^c), or saves all that the backward pass needs
(F^e). Copies to and from the host are those of Beaumont, Eyraud-Dubois and Shilova 2021, "Efficient combination of
rematerialization and offloading for training DNNs" (NeurIPS).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from simulator.errors import ScheduleError


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
class Operation:
    """One operation on *layer*, counted from 1; *tensor* (`ACTIVATION` or `TAPE`) is what a transfer copies."""

    kind: Kind
    layer: int = 0
    tensor: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.TURN:
            return str(self.kind.value)
        return f"{self.kind.value[0]}{self.layer}{self.kind.value[1:]}{self.tensor}"


TURN = Operation(Kind.TURN)

_OPERATION = re.compile(r"Loss BLoss|\b(F)(\d+)([nce])\b|\b(B)(\d+)()\b|\b([OPW])(\d+)([at])\b")


@dataclass(frozen=True, slots=True)
class Sequence:
    """*operations* in order of issue. Transfers run beside the computation, one at a time for each direction.

    >>> str(Sequence.parse("F1c F2e Loss BLoss B2 F1e B1"))
    'F1c F2e Loss BLoss B2 F1e B1'
    """

    operations: tuple[Operation, ...]

    def __iter__(self) -> Iterator[Operation]:
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
    def made(cls, operations: Iterable[Operation]) -> Sequence:
        """The sequence of *operations*."""
        return cls(tuple(operations))

    @classmethod
    def parse(cls, text: str) -> Sequence:
        """Read what `str` prints. Raises `ScheduleError` for anything else."""
        left = _OPERATION.sub("", text).strip()
        if left:
            raise ScheduleError(f'"{left.split()[0]}" is no operation; write e.g. F1c, F2n, F3e, Loss BLoss, B3')
        return cls(tuple(_operation(match) for match in _OPERATION.finditer(text)))


def _operation(match: re.Match[str]) -> Operation:
    if match.lastindex is None:
        return TURN
    letter, number, suffix = (group for group in match.groups() if group is not None)
    if letter in "OPW":
        return Operation(Kind(letter), int(number), suffix)
    return Operation(Kind(letter + suffix), int(number))
