"""Looped breadth-first: all micro-batches pass a virtual stage before the rank runs its next one.

Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023 (arXiv:2211.05953), with the backwards from the last
micro-batch to the first, as in torch.distributed.pipelining. The bubble is that of the interleaved order,
(p-1)/(v m + p-1); every rank keeps all micro-batches of all its virtual stages alive, but gathers and reduces each
stage's parameters once a step.
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import at_least_one

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def looped_bfs(stages: int, micro_batches: int, virtual_stages: int = 2) -> Order:
    """The order of *stages* pipeline ranks with *virtual_stages* each, over *micro_batches*.

    Rank r holds stages r, r + p, r + 2p ... Raises `ScheduleError` for counts below 1.

    >>> print(looped_bfs(2, 2, 2).csv(), end="")
    0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0
    1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0
    """
    at_least_one(stages=stages, micro_batches=micro_batches, virtual_stages=virtual_stages)
    rows = []
    for rank in range(stages):
        own = range(rank, stages * virtual_stages, stages)
        forwards = [Action("F", stage, i) for stage in own for i in range(micro_batches)]
        rows.append((*forwards, *(Action("B", stage, i) for _, stage, i in reversed(forwards))))
    return Order(tuple(rows))
