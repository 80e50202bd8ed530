"""An order says what each pipeline rank computes, action after action: all that a pipeline file returns.

>>> Action.parse("2F0")
Action(phase='F', stage=2, micro_batch=0)
>>> str(Action("B", 1, 3))
'1B3'
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import NamedTuple

from simulator.errors import ScheduleError

PHASES = {
    "F": "forward",
    "B": "backward, both gradients",
    "I": "backward for the input",
    "W": "backward for the weights",
    "R": "recompute",
    "O": "optimizer",
}
"""The letters of the literature."""

_ACTION = re.compile(r"(\d+)([FBIWRO])(\d*)")


class Action(NamedTuple):
    """One micro-batch passing one stage in one phase; the optimizer belongs to no micro-batch."""

    phase: str
    stage: int
    micro_batch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.phase}{'' if self.micro_batch is None else self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read what `str` prints. Raises `ScheduleError` for anything else."""
        match = _ACTION.fullmatch(text.strip())
        if match is None:
            raise ScheduleError(f'"{text}" is not an action; write <stage><{"|".join(PHASES)}><micro-batch>, e.g. 2F0')
        stage, phase, micro_batch = match.groups()
        return cls(phase, int(stage), int(micro_batch) if micro_batch else None)


@dataclass(frozen=True, slots=True)
class Order:
    """One row of actions per pipeline rank.

    >>> print(Order.parse("0F0,0F1,0B0,0B1").csv(), end="")
    0F0,0F1,0B0,0B1
    """

    rows: tuple[tuple[Action, ...], ...]

    def csv(self) -> str:
        """The order in the form of torch.distributed.pipelining: a row per pipeline rank, no empty cells."""
        return "".join(",".join(map(str, row)) + "\n" for row in self.rows)

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read what `csv` writes; empty cells are idle slots and are left out."""
        rows = csv.reader(io.StringIO(text))
        return cls(tuple(tuple(Action.parse(cell) for cell in row if cell.strip()) for row in rows if row))

    @property
    def stages(self) -> int:
        """The number of stages: one more than the highest that occurs."""
        return 1 + max(action.stage for row in self.rows for action in row)
