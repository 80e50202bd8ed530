"""The optimizer within an order, where training does not stop for it."""

from __future__ import annotations

from dataclasses import replace

from simulator.order import Action, Order


def updated(order: Order, every: int) -> Order:
    """*order* with the optimizer of a stage after each of its backwards that completes *every* micro-batches."""
    rows = []
    for row in order.rows:
        new = []
        for action in row:
            new.append(action)
            if action.phase == "B" and action.micro_batch is not None and (action.micro_batch + 1) % every == 0:
                new.append(Action("O", action.stage, action.micro_batch))
        rows.append(tuple(new))
    return replace(order, rows=tuple(rows))
