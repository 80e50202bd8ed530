"""Pipeline orders: an action is one phase of one micro-batch on one stage, an order lists the actions of each pipeline
rank in sequence. An order may stand in a CSV file.

>>> Action.parse("2F0")
Action(phase='F', stage=2, micro_batch=0)
>>> str(Action("B", 1, 3))
'1B3'

Messages take no time, so all idle time is the bubble of the order. Closed forms and pictures in papers have the same
assumptions.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import DeadlockError, ScheduleError
from clustersim.simulator.reading.files import UnreadableFile, read_text

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


_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


@dataclass(frozen=True)
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

    @cached_property
    def stages(self) -> int:
        """The number of stages, virtual stages included: one more than the highest that occurs."""
        return 1 + max(action.stage for row in self.rows for action in row)

    @cached_property
    def micro_batches(self) -> int:
        """The number of micro-batches: one more than the highest that occurs."""
        return 1 + max((a.micro_batch for row in self.rows for a in row if a.micro_batch is not None), default=-1)

    @cached_property
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


DURATIONS: Mapping[str, float] = {"F": 1, "R": 1, "B": 2, "I": 1, "W": 1, "O": 0}
"""In units of a forward: a backward takes 2, one half for each gradient, as in the pictures of the literature."""


class Slot(NamedTuple):
    """*action* occupies its row from *begin* to *end*, in the unit of the durations."""

    action: Action
    begin: float
    end: float


def slots(order: Order, durations: Mapping[str, float] = DURATIONS) -> tuple[tuple[Slot, ...], ...]:
    """The slots of each row. *durations*: by phase the duration of an action; `DURATIONS` for phases not given.

    Two actions that run together take the sum of their durations. Raises `ScheduleError` if an action occurs twice, and
    `DeadlockError`, with the rows, if rows wait for each other in a circle.

    >>> [slot.end for slot in slots(Order.parse("0F0,0B0\\n1F0,1B0"))[1]]
    [2, 4]
    """
    row_of = _row_of_each(order)
    durations = {**DURATIONS, **durations}
    ends: dict[Action, float] = {}
    done: list[list[Slot]] = [[] for _ in order.rows]
    waiting: defaultdict[Action, list[int]] = defaultdict(list)
    runnable = list(range(len(order.rows)))
    while runnable:
        rank = runnable.pop()
        for action in _remaining(order.rows[rank], done[rank]):
            needed = needs(action, row_of)
            missing = next((other for other in needed if other not in ends), None)
            if missing is not None:
                waiting[missing].append(rank)
                break
            begin = max([_free(done[rank]), *(ends[other] for other in needed)])
            ends[action] = begin + durations[action.phase]
            done[rank].append(Slot(action, begin, ends[action]))
            runnable += waiting.pop(action, [])
    if waiting:
        raise _deadlock(order, row_of, {rank: missing for missing, ranks in waiting.items() for rank in ranks}, done)
    return tuple(map(tuple, done))


def needs(action: Action, there: Mapping[Action, object]) -> list[Action]:
    """The actions that must have ended before *action* can begin. *there*: all actions of the order."""
    phase, stage, micro_batch = action
    own = Action("F", stage, micro_batch)
    match phase:
        case "F":
            return [Action("F", stage - 1, micro_batch)] if stage else []
        case "R":
            return [own]
        case "W":
            return [Action("I", stage, micro_batch)]
        case "B" | "I":
            recompute = Action("R", stage, micro_batch)
            gradients = (Action(letter, stage + 1, micro_batch) for letter in "BI")
            return [own, *(other for other in (recompute, *gradients) if other in there)]
    return []


def bubble_fraction(rows: Sequence[Sequence[Slot]]) -> float:
    """The fraction of the time of all *rows*, from the first begin to the last end, in which they are idle."""
    begin, end = min(row[0].begin for row in rows), max(row[-1].end for row in rows)
    busy = sum(slot.end - slot.begin for row in rows for slot in row)
    return 1 - busy / (len(rows) * (end - begin))


def in_flight(row: Sequence[Action]) -> int:
    """The most micro-batches that are in flight at one time on a row, all its stages together.

    A micro-batch is in flight on a stage from its forward to the end of its backward. A split backward ends with the
    gradient of the weights, since a part of the activations is kept until then.
    """
    alive = peak = 0
    for action in row:
        alive += {"F": 1, "B": -1, "W": -1}.get(action.phase, 0)
        peak = max(peak, alive)
    return peak


def _remaining(row: Sequence[Action], laid: Sequence[Slot]) -> Iterator[Action]:
    return (row[index] for index in range(len(laid), len(row)))


def _free(laid: Sequence[Slot]) -> float:
    return laid[-1].end if laid else 0


def _row_of_each(order: Order) -> dict[Action, int]:
    rows = {action: rank for rank, row in enumerate(order.rows) for action in row}
    if len(rows) != sum(map(len, order.rows)):
        counts = Counter(action for row in order.rows for action in row)
        raise ScheduleError(f"{counts.most_common(1)[0][0]} occurs twice in the order; each action runs once")
    return rows


def _deadlock(
    order: Order, row_of: Mapping[Action, int], missing: Mapping[int, Action], done: Sequence[Sequence[Slot]]
) -> DeadlockError:
    """The error with the rows that cannot go on, each with its next action marked and what it waits for."""
    at = {rank: len(laid) for rank, laid in enumerate(done)}
    circle = list(_circle(missing, row_of))
    title = "in a circle" if all(missing[rank] in row_of for rank in circle) else "an action is missing"
    lines = []
    for rank in circle:
        action = missing[rank]
        where = f"row {row_of[action]}" if action in row_of else "no row"
        row = " ".join(f">>{a}<<" if i == at[rank] else str(a) for i, a in _around(order.rows[rank], at[rank]))
        lines.append(f"  row {rank}: {row}  waits for {action}, which is in {where}")
    return DeadlockError("\n".join([f"the order cannot run: {title}", *lines]))


def _circle(missing: Mapping[int, Action], row_of: Mapping[Action, int]) -> Iterator[int]:
    """The rows that wait for each other in a circle, or the row that waits for an action that no row has."""
    rank, seen = min(missing), list[int]()
    while rank not in seen:
        seen.append(rank)
        if missing[rank] not in row_of:
            return iter([rank])
        rank = row_of[missing[rank]]
    return iter(seen[seen.index(rank) :])


def _around(row: Sequence[Action], index: int, reach: int = 6) -> Iterator[tuple[int, Action]]:
    begin = max(0, index - reach)
    return enumerate(row[begin : index + reach + 1], begin)


SUFFIX = ".csv"

LARGEST = 64 * 2**20
"""Bytes of a file at most: an order of 64 ranks and 10,000 micro-batches has 10 MB."""


def is_file(name: str) -> bool:
    """Return whether the order *name* is a file."""
    return name.endswith(SUFFIX)


def read_order(name: str) -> Order:
    """Return the order in the file *name*. Raises `ScheduleError` for one that is not whole."""
    try:
        text = read_text(Path(name), LARGEST)
    except UnreadableFile as error:
        raise ScheduleError(str(error)) from None
    try:
        order = Order.parse(text)
        order.rank_of_stage()
        if other := next((one for row in order.rows for one in row if one.phase not in "FBIW"), None):
            raise ScheduleError(f"{other} is no action of a file; write forward (F) and backward (B, or I and W) ones")
        order.check_whole()
    except ScheduleError as error:
        raise ScheduleError(f"{name}: {error}") from None
    return order


def order_of_file(name: str) -> Callable[..., Order]:
    """Return a function as the files of this folder have one, which returns the order in the file *name*."""

    def order(stages: int, micro_batches: int) -> Order:
        """Return the order; raise `ScheduleError` if it is of other counts."""
        read = read_order(name)
        if len(read.rows) != stages:
            raise ScheduleError(f"{name} has {len(read.rows)} rows, one for each pipeline rank, but pp is {stages}")
        if read.micro_batches != micro_batches:
            raise ScheduleError(
                f"{name} runs {read.micro_batches} micro-batches, but a replica has {micro_batches} a step; "
                f"global_batch_size must be dp x micro_batch_size x {read.micro_batches}"
            )
        return read

    return order
