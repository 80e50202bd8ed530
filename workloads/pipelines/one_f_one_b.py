"""1F1B, also PipeDream-Flush: after a warm-up each stage alternates one forward with one backward.

Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (arXiv:2006.09503); the default of
DeepSpeed and of Megatron-LM, and what lectures draw as early backward without virtual stages. Stage s of p keeps
at most p - s micro-batches alive; the bubble is (p-1)/(m+p-1).
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import alternate, at_least_one, warm_ups


def one_f_one_b(stages: int, micro_batches: int, *, replicas: Sequence[int] | None = None) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*. Raises `ScheduleError` for counts below 1.

    *replicas*: how many ranks share the micro-batches of each stage, round-robin; the row of a stage is that of all.

    >>> print(one_f_one_b(2, 3).csv(), end="")
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    """
    return warmed_up(stages, micro_batches, warm_ups(stages, replicas))


def warmed_up(stages: int, micro_batches: int, warm_up: list[int]) -> Order:
    """1F1B in which stage s runs *warm_up[s]* forwards before its first pair."""
    at_least_one(stages=stages, micro_batches=micro_batches)
    rows = []
    for stage in range(stages):
        forwards = [Action("F", stage, i) for i in range(micro_batches)]
        backwards = [Action("B", stage, i) for i in range(micro_batches)]
        rows.append(alternate(forwards, backwards, warm_up[stage]))
    return Order(tuple(rows))
