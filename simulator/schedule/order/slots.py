"""An order laid out in time: each action as soon as its row is free and what it needs has ended, nothing else costing.

What is lost is the bubble of the order alone; the papers' closed forms and pictures are of this.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.errors import DeadlockError, ScheduleError
from simulator.schedule.order.action import Action
from simulator.schedule.order.order import Order

DURATIONS: Mapping[str, float] = {"F": 1, "R": 1, "B": 2, "I": 1, "W": 1, "O": 0}
"""A backward costs two forwards, half of it for each gradient, as in the pictures of the literature."""


class Slot(NamedTuple):
    """*action* takes its row from *begin* to *end*."""

    action: Action
    begin: float
    end: float


def slots(order: Order, durations: Mapping[str, float] = DURATIONS) -> tuple[tuple[Slot, ...], ...]:
    """When each action of each row runs, if the actions of a phase take *durations* and messages nothing.

    A phase that *durations* does not name takes what `DURATIONS` says; a pair run together takes the sum of its two.
    Raises `ScheduleError` where an action stands twice, `DeadlockError` with the rows and the circle where they wait
    for one another.

    >>> [slot.end for slot in slots(Order.parse("0F0,0B0\\n1F0,1B0"))[1]]
    [2, 4]
    """
    homes = _homes(order)
    durations = {**DURATIONS, **durations}
    ends: dict[Action, float] = {}
    done: list[list[Slot]] = [[] for _ in order.rows]
    waiting: defaultdict[Action, list[int]] = defaultdict(list)
    runnable = list(range(len(order.rows)))
    while runnable:
        rank = runnable.pop()
        for action in _remaining(order.rows[rank], done[rank]):
            needed = needs(action, homes)
            missing = next((other for other in needed if other not in ends), None)
            if missing is not None:
                waiting[missing].append(rank)
                break
            begin = max([_free(done[rank]), *(ends[other] for other in needed)])
            ends[action] = begin + durations[action.phase]
            done[rank].append(Slot(action, begin, ends[action]))
            runnable += waiting.pop(action, [])
    if waiting:
        raise _deadlock(order, homes, {rank: missing for missing, ranks in waiting.items() for rank in ranks}, done)
    return tuple(map(tuple, done))


def needs(action: Action, there: Mapping[Action, object]) -> list[Action]:
    """What must have ended before *action* can begin, *there* being all actions of the order."""
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
    """The part of the rows' time, from the first begin to the last end, in which they do nothing."""
    begin, end = min(row[0].begin for row in rows), max(row[-1].end for row in rows)
    busy = sum(slot.end - slot.begin for row in rows for slot in row)
    return 1 - busy / (len(rows) * (end - begin))


def in_flight(row: Sequence[Action]) -> int:
    """The most micro-batches, over all stages of a row, that are forward and not yet all backward at once.

    The weight half of a split backward counts: till then part of the activations is kept.
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


def _homes(order: Order) -> dict[Action, int]:
    rows = {action: rank for rank, row in enumerate(order.rows) for action in row}
    if len(rows) != sum(map(len, order.rows)):
        counts = Counter(action for row in order.rows for action in row)
        raise ScheduleError(f"{counts.most_common(1)[0][0]} stands twice in the order; each action runs once")
    return rows


def _deadlock(
    order: Order, homes: Mapping[Action, int], missing: Mapping[int, Action], done: Sequence[Sequence[Slot]]
) -> DeadlockError:
    """The error that shows the rows that stand still, each with its next action marked and what it waits for."""
    at = {rank: len(laid) for rank, laid in enumerate(done)}
    circle = list(_circle(missing, homes))
    title = "in a circle" if all(missing[rank] in homes for rank in circle) else "an action is not there"
    lines = []
    for rank in circle:
        action = missing[rank]
        where = f"row {homes[action]}" if action in homes else "no row"
        row = " ".join(f">>{a}<<" if i == at[rank] else str(a) for i, a in _around(order.rows[rank], at[rank]))
        lines.append(f"  row {rank}: {row}  waits for {action}, which stands in {where}")
    return DeadlockError("\n".join([f"the order cannot run: {title}", *lines]))


def _circle(missing: Mapping[int, Action], homes: Mapping[Action, int]) -> Iterator[int]:
    """The rows that wait for one another, or the one that waits for what no row has."""
    rank, seen = min(missing), list[int]()
    while rank not in seen:
        seen.append(rank)
        if missing[rank] not in homes:
            return iter([rank])
        rank = homes[missing[rank]]
    return iter(seen[seen.index(rank) :])


def _around(row: Sequence[Action], index: int, reach: int = 6) -> Iterator[tuple[int, Action]]:
    begin = max(0, index - reach)
    return enumerate(row[begin : index + reach + 1], begin)
