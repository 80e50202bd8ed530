"""Time slots of an order: each action begins when its row is free and the actions that it needs have ended.

Messages take no time, so all idle time is the bubble of the order. Closed forms and pictures in papers have the same
assumptions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.errors import DeadlockError, ScheduleError
from simulator.schedule.order.action import Action
from simulator.schedule.order.order import Order

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
