"""Split each backward of an order in two: I, the gradient of the input, at once; W, of the weights, later.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241): only the gradient of the input is awaited
by another stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from simulator.errors import ScheduleError
from simulator.schedule.order import Action, Order


def split_backward(order: Order, delays: Sequence[int] | None = None) -> Order:
    """*order* with an I and a W for each B; in row r a W follows the I that is *delays[r]* after its own.

    Without *delays* each W follows its own I. Those left at the end of a row, or before an optimizer step, follow
    there. A backward that runs together with a forward stays whole. Raises `ScheduleError` unless each row has a delay.

    >>> split_backward(Order.parse("0F0,0F1,0B0,0B1"), [1]).csv()
    '0F0,0F1,0I0,0I1,0W0,0W1\\n'
    """
    delays = delays if delays is not None else [0] * len(order.rows)
    if len(delays) != len(order.rows):
        raise ScheduleError(f"{len(delays)} delays are given for an order of {len(order.rows)} rows; give one for each")
    rows = (_split(row, order.overlapped, delay) for row, delay in zip(order.rows, delays, strict=True))
    return replace(order, rows=tuple(rows))


def _split(row: Sequence[Action], overlapped: frozenset[Action], delay: int) -> tuple[Action, ...]:
    new: list[Action] = []
    pending: deque[Action] = deque()
    for before, action in zip((None, *row), row, strict=False):
        if action.phase == "B" and before not in overlapped:
            new.append(action._replace(phase="I"))
            pending.append(action._replace(phase="W"))
            if len(pending) > delay:
                new.append(pending.popleft())
            continue
        if action.phase == "O":
            new += pending
            pending.clear()
        new.append(action)
    return (*new, *pending)
