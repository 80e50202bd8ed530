"""Interleaved zero bubble: ZB-H1 over virtual stages.

torch.distributed.pipelining's ScheduleInterleavedZeroBubble, after Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
2024 (arXiv:2401.10241). With one virtual stage a rank it is ZB-H1.
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import split_backward
from clustersim.workloads.pipelines.interleaved import depth_first

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def interleaved_zero_bubble(stages: int, micro_batches: int, virtual_stages: int = 2) -> Order:
    """The order of *stages* pipeline ranks with *virtual_stages* each, over *micro_batches*; rank r delays W by r.

    Raises `ScheduleError` for counts below 1 and for micro-batches that do not make equal rounds.

    >>> print(interleaved_zero_bubble(2, 2, 2).csv(), end="")
    0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1
    1F0,1F1,3F0,3I0,3F1,3I1,3W0,1I0,3W1,1I1,1W0,1W1
    """
    order = depth_first("interleaved_zero_bubble", stages, micro_batches, virtual_stages, ahead=1)
    return split_backward(order, range(stages))
