"""1F1B, also PipeDream-Flush: after a warm-up each stage alternates one forward with one backward.

Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (arXiv:2006.09503); the default of
DeepSpeed and of Megatron-LM. Stage s of p keeps at most p - s micro-batches alive.
"""

from __future__ import annotations

from simulator.order import Action, Order


def one_f_one_b(stages: int, micro_batches: int) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*.

    >>> print(one_f_one_b(2, 3).csv(), end="")
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    """
    return Order(tuple(_row(stage, min(stages - stage - 1, micro_batches), micro_batches) for stage in range(stages)))


def _row(stage: int, warm_up: int, micro_batches: int) -> tuple[Action, ...]:
    row = [Action("F", stage, i) for i in range(warm_up)]
    for i in range(micro_batches - warm_up):
        row += [Action("F", stage, warm_up + i), Action("B", stage, i)]
    row += [Action("B", stage, i) for i in range(micro_batches - warm_up, micro_batches)]
    return tuple(row)
