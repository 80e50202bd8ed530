"""DualPipe: micro-batches enter the pipeline at both ends, and every rank holds a stage of each direction.

A forward of one direction runs together with a backward of the other, each beside the communication of the other one.
DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv:2412.19437, section 3.2.1) and
https://github.com/deepseek-ai/DualPipe. Its two halves are mirror images: each is the V of `dual_pipe_v` on half as
many ranks. The bubble is (p/2 - 1)(F&B + B - 3W), with F&B a forward and a backward together and B a whole backward
(table 2 there), if a forward takes as long as the input's half of a backward. A rank holds its parameters twice, and
activations of p + 1 micro-batches.
"""

from __future__ import annotations

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import at_least_one
from clustersim.workloads.pipelines.dual_pipe_v import row_of_v

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""

MIRRORED = True
"""Rank r of p computes stages r and p - 1 - r, and so does rank p - 1 - r: both hold the weights of both stages."""


def dual_pipe(stages: int, micro_batches: int) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*; the second half of them enters at the last rank.

    Raises `ScheduleError` for an odd number of ranks or micro-batches, and for fewer than 2p micro-batches.

    >>> print(dual_pipe(2, 4).csv(), end="")
    0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1
    0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    if stages % 2:
        raise ScheduleError(
            f"{stages} pipeline ranks: dual_pipe pairs each rank with its mirror image and takes an even number; "
            f"try {stages - 1 or 2} or {stages + 1}"
        )
    if micro_batches % 2 or micro_batches < 2 * stages:
        raise ScheduleError(
            f"micro_batches = {micro_batches}: dual_pipe sends half of them in from each end of {stages} ranks and "
            f"takes an even number of {2 * stages} or more"
        )
    half = micro_batches // 2
    rows: list[tuple[Action, ...]] = []
    overlapped: set[Action] = set()
    for rank in range(stages):
        own = row_of_v(min(rank, stages - 1 - rank), stages // 2, half)
        # a leg's micro-batches are those of the end that it begins at
        first = {leg: half * (number ^ (rank >= stages // 2)) for number, leg in enumerate(own.legs)}
        rows.append(tuple(_shifted(action, first) for action in own.actions))
        overlapped.update(_shifted(action, first) for action in own.overlapped)
    return Order(tuple(rows), frozenset(overlapped))


def _shifted(action: Action, first: dict[int, int]) -> Action:
    """*action* with its micro-batch counted from the *first* one of its leg."""
    assert action.micro_batch is not None
    return action._replace(micro_batch=first[action.stage] + action.micro_batch)
