"""An action is one phase of one micro-batch on one stage.

>>> Action.parse("2F0")
Action(phase='F', stage=2, micro_batch=0)
>>> str(Action("B", 1, 3))
'1B3'
"""

from __future__ import annotations

import re
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
"""The letters of the literature for the phases."""

PLACEHOLDER = -1
"""The micro-batch of an action in a template; each block replaces it by its own (`simulator.schedule.program`)."""

PLACEHOLDER_TEXT = "\N{WHITE SQUARE}"

_ACTION = re.compile(r"(\d+)([FBIWRO])(\d*)")


class Action(NamedTuple):
    """One phase (of `PHASES`) of one micro-batch on one stage.

    The optimizer has no micro-batch; in an asynchronous order it has the micro-batch that completes its global batch.
    """

    phase: str
    stage: int
    micro_batch: int | None = None

    def __str__(self) -> str:
        number = {None: "", PLACEHOLDER: PLACEHOLDER_TEXT}.get(self.micro_batch, self.micro_batch)
        return f"{self.stage}{self.phase}{number}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read what `str` prints. Raises `ScheduleError` for anything else."""
        match = _ACTION.fullmatch(text.strip())
        if match is None:
            raise ScheduleError(f'"{text}" is not an action; write <stage><{"|".join(PHASES)}><micro-batch>, e.g. 2F0')
        stage, phase, micro_batch = match.groups()
        return cls(phase, int(stage), int(micro_batch) if micro_batch else None)
