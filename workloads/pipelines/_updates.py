"""Optimizer steps within an asynchronous order."""

from __future__ import annotations

from dataclasses import replace

from simulator.schedule.order import Action, Order


def updated(order: Order, every: int) -> Order:
    """*order* with an optimizer step of a stage after every *every* backwards of the stage."""
    rows = []
    for row in order.rows:
        new = []
        for action in row:
            new.append(action)
            if action.phase == "B" and action.micro_batch is not None and (action.micro_batch + 1) % every == 0:
                new.append(Action("O", action.stage, action.micro_batch))
        rows.append(tuple(new))
    return replace(order, rows=tuple(rows))
