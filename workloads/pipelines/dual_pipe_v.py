"""DualPipeV: stages in a V; a forward of one leg runs together with a backward of the other to hide communication.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv:2412.19437, section 3.2.1) and its V-shaped half published with
https://github.com/deepseek-ai/DualPipe, as torch.distributed.pipelining's ScheduleDualPipeV has it.
"""

from __future__ import annotations

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import Row, at_least_one, exactly_two

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def dual_pipe_v(stages: int, micro_batches: int, virtual_stages: int = 2) -> Order:
    """The order of *stages* pipeline ranks, two virtual stages each, over *micro_batches*.

    Rank r holds stages r and 2p - 1 - r. Raises `ScheduleError` for counts below 1, for fewer than 2p micro-batches,
    and for other than 2 virtual stages a rank.

    >>> print(dual_pipe_v(1, 2).csv(), end="")
    0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    exactly_two("dual_pipe_v", virtual_stages)
    if micro_batches < 2 * stages:
        raise ScheduleError(
            f"micro_batches = {micro_batches}: dual_pipe_v fills the V of {stages} stages with {2 * stages} or more"
        )
    rows = [row_of_v(rank, stages, micro_batches) for rank in range(stages)]
    return Order(tuple(tuple(row.actions) for row in rows), frozenset(f for row in rows for f in row.overlapped))


def row_of_v(rank: int, stages: int, micro_batches: int) -> Row:
    """The row of *rank* of *stages* pipeline ranks."""
    row = Row(rank, stages)
    after, steady = stages - rank - 1, micro_batches - 2 * stages + rank + 1
    row.run(2 * after, "F0")
    row.run(rank + 1, "F0", "F1")
    row.run(after, "I1", "W", "F1")
    # the rank at the bottom of the V has both legs, so its first pair has no communication to hide
    row.run(1, *(["F0", "B1"] if after == 0 else ["F0+B1"]), "F1+B0")
    row.run(steady - 1, "F0+B1", "F1+B0")
    row.run(after, "B1", "F1+B0")
    # the second half of the remaining backwards delays its weights
    legs = "10" * (rank + 1)
    row.run(1, *(f"B{leg}" for leg in legs[: rank + 1]), *(f"I{leg}" for leg in legs[rank + 1 :]))
    row.run(after, "W", "I0")
    row.run(rank + 1, "W")
    return row
