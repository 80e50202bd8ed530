"""ZB-H1: 1F1B with split backwards; the weights' halves are delayed, so that they fill the end of the step.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241, figure 2). No stage keeps more micro-batches
than the first of 1F1B, p; the bubble shrinks from (p-1)(F+B) to (p-1)(F+I-W).
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import split_backward
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def zero_bubble_h1(stages: int, micro_batches: int) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*; stage s delays its W by s micro-batches.

    Raises `ScheduleError` for counts below 1.

    >>> print(zero_bubble_h1(2, 3).csv(), end="")
    0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2
    1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2
    """
    return split_backward(one_f_one_b(stages, micro_batches), range(stages))
