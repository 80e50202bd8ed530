"""Optimizer steps within an asynchronous order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.schedule.order import Action, Order


def updated(order: Order, every: int, replicas: Sequence[int] | None = None) -> Order:
    """*order* with an optimizer step of a stage after every *every* backwards of the stage.

    *replicas*: the ranks that share the micro-batches of each stage, by default one. Each makes a step after its last
    backward among those.
    """
    rows = []
    for row, count in zip(order.rows, replicas or [1] * len(order.rows), strict=True):
        new = []
        for action in row:
            new.append(action)
            if action.phase == "B" and action.micro_batch is not None and action.micro_batch % every >= every - count:
                new.append(Action("O", action.stage, action.micro_batch))
        rows.append(tuple(new))
    return replace(order, rows=tuple(rows))
