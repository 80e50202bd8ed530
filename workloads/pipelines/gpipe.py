"""GPipe: all forwards, then all backwards from the last micro-batch to the first.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019
(arXiv:1811.06965, figure 2c). Every stage keeps all m micro-batches alive; the bubble is (p-1)/(m+p-1).
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import at_least_one

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def gpipe(stages: int, micro_batches: int, *, recompute: bool = False) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*.

    With *recompute*, every micro-batch runs forward again before it runs backward, except the last one, whose
    activations are still there. Raises `ScheduleError` for counts below 1.

    >>> print(gpipe(1, 3, recompute=True).csv(), end="")
    0F0,0F1,0F2,0B2,0R1,0B1,0R0,0B0
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    last = micro_batches - 1
    rows = []
    for stage in range(stages):
        row = [Action("F", stage, i) for i in range(micro_batches)]
        for i in reversed(range(micro_batches)):
            row += [Action(phase, stage, i) for phase in ("RB" if recompute and i < last else "B")]
        rows.append(tuple(row))
    return Order(tuple(rows))
