"""Interleaved 1F1B: each rank holds several virtual stages, so a micro-batch passes it several times, and earlier.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021
(arXiv:2104.04473, figure 4): depth first, as many micro-batches on a virtual stage as there are ranks, then the next
virtual stage. With v virtual stages the bubble is (p-1)/(v m + p-1). If m is not a multiple of p, which Megatron-LM
refuses, the rounds are those of torch.distributed.pipelining.
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import alternate, at_least_one, in_rounds, in_turn, uneven


def interleaved(stages: int, micro_batches: int, virtual_stages: int = 2) -> Order:
    """The order of *stages* pipeline ranks with *virtual_stages* each, over *micro_batches*.

    Rank r holds stages r, r + p, r + 2p ... Raises `ScheduleError` for counts below 1 and for micro-batches that do not
    make equal rounds.

    >>> print(interleaved(2, 2, 2).csv(), end="")
    0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1
    1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1
    """
    return depth_first("interleaved", stages, micro_batches, virtual_stages, ahead=2)


def depth_first(name: str, stages: int, micro_batches: int, virtual_stages: int, ahead: int) -> Order:
    """The interleaved order *name*: before its first pair each rank runs *ahead* more forwards than the next rank."""
    at_least_one(stages=stages, micro_batches=micro_batches, virtual_stages=virtual_stages)
    at_once = in_rounds(name, stages, micro_batches)
    rows = []
    for rank in range(stages):
        own = range(rank, stages * virtual_stages, stages)
        forwards = list(in_turn("F", own, micro_batches, at_once))
        backwards = list(in_turn("B", own[::-1], micro_batches, at_once))
        rows.append(alternate(forwards, backwards, (virtual_stages - 1) * at_once + ahead * (stages - 1 - rank)))
    return Order(tuple(rows), notes=uneven(stages, micro_batches))
