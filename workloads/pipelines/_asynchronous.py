"""Asynchronous orders: optimizer steps within them, and the global batches that show their steady state.

So do asynchronous orders, and methods of data parallelism that do not communicate alike in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, gcd
from typing import NamedTuple

from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import warm_ups


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


class SteadyState(NamedTuple):
    """The first *filling* global batches fill the pipeline, *measured* ones follow, the last *draining* drain it."""

    filling: int
    measured: int
    draining: int

    @property
    def batches(self) -> int:
        """All of them."""
        return self.filling + self.measured + self.draining


def steady_state(stages: int, micro_batches: int, steps: int = 1, replicas: Sequence[int] | None = None) -> SteadyState:
    """The batches, of *micro_batches* each, that an order over *stages* runs through to measure at least *steps*.

    *replicas*: the ranks that share the micro-batches of each stage, by default one. Stage 0 has so many micro-batches
    in flight as it runs forward before its first backward, and one more for each replica. The measured micro-batches
    are a multiple of these: where messages take time, 1F1B repeats after so many. (Unequal stages with such messages
    may repeat after fewer; the mean is then a little off, less with more *steps*.)

    Until the measured ones are over, every stage must do what it would do in an endless run. All micro-batches in
    flight but one, and one for each further replica of a stage, may be ahead of the one that stage 0 runs backward.
    After the last forward pass, a stage may run as many backward passes early. So at least twice as many micro-batches
    drain the pipeline.

    >>> steady_state(4, 8), steady_state(4, 6, steps=3)
    (SteadyState(filling=2, measured=1, draining=1), SteadyState(filling=2, measured=4, draining=1))
    """
    shared = replicas or [1] * stages
    in_flight = warm_ups(stages, shared)[0] + shared[0]
    whole = in_flight // gcd(in_flight, micro_batches)
    ahead = ceil(2 * (in_flight + max(shared) - 2) / micro_batches)
    return SteadyState(ahead + 1, ceil(steps / whole) * whole, ahead)


def repeated(order: Order, batches: int) -> Order:
    """*order* of one global batch, *batches* times over, each with an optimizer step of every stage at its end.

    >>> print(repeated(Order.parse("0F0,0F1,0B0,0B1"), 2).csv(), end="")
    0F0,0F1,0B0,0B1,0O1,0F2,0F3,0B2,0B3,0O3
    """
    each = order.micro_batches

    def of_batch(action: Action, batch: int) -> Action:
        assert action.micro_batch is not None
        return action._replace(micro_batch=action.micro_batch + batch * each)

    rows = []
    for row in order.rows:
        stages = sorted({action.stage for action in row})
        new: list[Action] = []
        for batch in range(batches):
            new += [of_batch(action, batch) for action in row]
            new += [Action("O", stage, (batch + 1) * each - 1) for stage in stages]
        rows.append(tuple(new))
    overlapped = frozenset(of_batch(action, batch) for batch in range(batches) for action in order.overlapped)
    return replace(order, rows=tuple(rows), overlapped=overlapped)
