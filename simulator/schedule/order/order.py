"""An order is the list of actions of each pipeline rank; the functions of `workloads.pipelines` return one."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulator.errors import ScheduleError
from simulator.schedule.order.action import Action

_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


@dataclass(frozen=True, slots=True)
class Order:
    """One row of actions per pipeline rank.

    *overlapped*: the forwards that run together with the next action of the row, a backward. *notes*: what reports say
    about how the order was made.

    >>> print(Order.parse("0F0,0F1,0B0,0B1").csv(), end="")
    0F0,0F1,0B0,0B1
    >>> Order.parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1").overlapped
    frozenset({Action(phase='F', stage=0, micro_batch=1)})
    """

    rows: tuple[tuple[Action, ...], ...]
    overlapped: frozenset[Action] = frozenset()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def csv(self) -> str:
        """The order as CSV in the form of torch.distributed.pipelining: one row per pipeline rank, no empty cells."""
        return "".join(",".join(self._cells(row)) + "\n" for row in self.rows)

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read what `csv` writes. Empty cells are idle slots and are left out.

        Raises `ScheduleError` for a cell that is no action, and for an order without actions.
        """
        rows: list[tuple[Action, ...]] = []
        overlapped: set[Action] = set()
        for line in csv.reader(io.StringIO(text)):
            cells = [_read(cell) for cell in line if cell.strip()]
            overlapped.update(cell[0] for cell in cells if len(cell) == 2)
            if line:
                rows.append(tuple(action for cell in cells for action in cell))
        if not any(rows):
            raise ScheduleError("the order is empty; write a row of actions per pipeline rank, e.g. 0F0,0B0")
        return cls(tuple(rows), frozenset(overlapped))

    @property
    def stages(self) -> int:
        """The number of stages, virtual stages included: one more than the highest that occurs."""
        return 1 + max(action.stage for row in self.rows for action in row)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches: one more than the highest that occurs."""
        return 1 + max((a.micro_batch for row in self.rows for a in row if a.micro_batch is not None), default=-1)

    @property
    def asynchronous(self) -> bool:
        """True if the order has optimizer actions. Otherwise the optimizer runs at the end of the step."""
        return any(action.phase == "O" for row in self.rows for action in row)

    def rank_of_stage(self) -> dict[int, int]:
        """The pipeline rank of each stage, by stage.

        Raises `ScheduleError` if two pipeline ranks compute one stage.
        """
        rank_of_stage: dict[int, int] = {}
        for rank, row in enumerate(self.rows):
            for action in row:
                if rank_of_stage.setdefault(action.stage, rank) != rank:
                    first = rank_of_stage[action.stage]
                    raise ScheduleError(f"{action} is in row {rank}, but stage {action.stage} is in row {first}")
        return dict(sorted(rank_of_stage.items()))

    def check_whole(self) -> None:
        """Raise `ScheduleError` unless each stage has each micro-batch once, forward and backward."""
        actions = Counter(action for row in self.rows for action in row)
        if other := next((a for a in actions if a.phase in "FBIW" and a.micro_batch is None), None):
            raise ScheduleError(f"{other} has no micro-batch; write e.g. {other}0")
        for stage in range(self.stages):
            for micro_batch in range(self.micro_batches):
                forward, whole, by_input, by_weights = (actions[Action(phase, stage, micro_batch)] for phase in "FBIW")
                if forward != 1:
                    raise ScheduleError(f"{stage}F{micro_batch} stands {forward} times; each action must stand once")
                if (whole, by_input, by_weights) not in ((1, 0, 0), (0, 1, 1)):
                    raise ScheduleError(
                        f"stage {stage} has no whole backward pass of micro-batch {micro_batch}: "
                        f"{stage}B{micro_batch}, or both {stage}I{micro_batch} and {stage}W{micro_batch}, must stand "
                        "once"
                    )

    def _cells(self, row: tuple[Action, ...]) -> Iterator[str]:
        actions = iter(row)
        for action in actions:
            together = next(actions, None) if action in self.overlapped else None
            yield str(action) if together is None else f"({action};{together})OVERLAP_F_B"


def _read(cell: str) -> tuple[Action, ...]:
    """The action of a cell, or the two actions that run together."""
    pair = _PAIR.fullmatch(cell.strip())
    if pair is None:
        return (Action.parse(cell),)
    forward, backward = map(Action.parse, pair.groups())
    if (forward.phase, backward.phase) != ("F", "B"):
        raise ScheduleError(
            f'"{cell.strip()}" does not pair a forward with a backward; write e.g. (0F7;7B3)OVERLAP_F_B'
        )
    return forward, backward
