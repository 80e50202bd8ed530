"""ZB-H2: ZB-H1 with twice the warm-up, so that with F = I = W no rank idles from its first action to its last.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241, figure 3). It needs 2p - 1 micro-batches in
flight, and an optimizer without a global check: ranks end one after the other, as they began.
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import split_backward
from clustersim.workloads.pipelines.one_f_one_b import warmed_up

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""

OPTIMIZER_SYNC = False
"""The optimizer steps before the norm of all gradients is known, and corrects the step afterwards (section 4)."""


def zero_bubble_h2(stages: int, micro_batches: int) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*.

    Stage s fills the 2(p-s) - 1 slots before its first gradient with forwards, and the 2s + 1 slots after its last I
    with W. Raises `ScheduleError` for counts below 1.

    >>> print(zero_bubble_h2(2, 3).csv(), end="")
    0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2
    1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2
    """
    order = warmed_up(stages, micro_batches, [2 * (stages - stage - 1) for stage in range(stages)])
    return split_backward(order, [2 * stage for stage in range(stages)])
