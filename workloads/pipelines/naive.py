"""Naive model parallelism: one micro-batch at a time passes all stages and back, so one stage at a time computes.

The first figure of GPipe (Huang et al., NeurIPS 2019, arXiv:1811.06965, figure 2b). The bubble is 1 - 1/p.
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import at_least_one

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def naive(stages: int, micro_batches: int) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*, one after the other.

    Raises `ScheduleError` for counts below 1.

    >>> print(naive(2, 1).csv(), end="")
    0F0,0B0
    1F0,1B0
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    return Order(
        tuple(tuple(Action(phase, stage, i) for i in range(micro_batches) for phase in "FB") for stage in range(stages))
    )
