"""ZB-V: two virtual stages a rank, in a V, so that the rank that begins a micro-batch also ends it.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241, section 6), as
torch.distributed.pipelining's ScheduleZBVZeroBubble has it. No bubble with F = I = W, at the memory of 1F1B: p
micro-batches of a whole rank's layers.
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import Row, at_least_one, exactly_two

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""

OPTIMIZER_SYNC = False
"""The optimizer steps before the norm of all gradients is known, and corrects the step afterwards (section 4)."""


def zero_bubble_v(stages: int, micro_batches: int, virtual_stages: int = 2) -> Order:
    """The order of *stages* pipeline ranks, two virtual stages each, over *micro_batches*.

    Rank r holds stages r and 2p - 1 - r. Fewer than 2p - 1 micro-batches run like the first ones of 2p - 1. Raises
    `ScheduleError` for counts below 1 and for other than 2 virtual stages.

    >>> print(zero_bubble_v(1, 2).csv(), end="")
    0F0,1F0,1I0,1W0,0F1,0I0,0W0,1F1,1I1,1W1,0I1,0W1
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    exactly_two("zero_bubble_v", virtual_stages)
    planned = max(2 * stages - 1, micro_batches)
    rows = (_row(rank, stages, planned) for rank in range(stages))
    return Order(tuple(tuple(a for a in row.actions if (a.micro_batch or 0) < micro_batches) for row in rows))


def _row(rank: int, stages: int, micro_batches: int) -> Row:
    row = Row(rank, stages)
    after = stages - rank - 1
    # warm-up: until the first micro-batch has passed both legs
    row.run(2 * after + 1, "F0")
    row.run(rank, "F1", "F0")
    row.run(after + 1, "F1", "I1", "W1")
    # steady: all six alternately, then without new micro-batches
    row.run(micro_batches - stages - after, "F0", "I0", "W0", "F1", "I1", "W1")
    row.run(after, "I0", "W0", "F1", "I1", "W1")
    # end: inputs first if others wait for them
    row.run(rank, "I0", "I1")
    row.run(after + 1, "I0", "W0")
    row.run(rank, "W1")
    row.run(rank, "W0")
    return row
