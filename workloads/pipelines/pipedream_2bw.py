"""PipeDream-2BW: 1F1B that never drains; weights are updated every m micro-batches, and two versions are kept.

Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (arXiv:2006.09503, section 3.1). With at
least as many micro-batches as stages, no micro-batch in flight is older than the version before the newest. In the
steady state there is no bubble: an update comes every m (F + B).
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import at_least_one, updated, warm_ups
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def pipedream_2bw(stages: int, micro_batches: int, *, batches: int = 3, replicas: Sequence[int] | None = None) -> Order:
    """The order of *stages* pipeline ranks over *batches* of *micro_batches*, numbered consecutively.

    The first batch fills the pipeline, the last one drains it; in between it is in its steady state. *replicas*: how
    many ranks share the micro-batches of each stage. Raises `ScheduleError` for counts below 1 and for fewer
    micro-batches than are in flight, which is one for each stage without replicas.

    >>> print(pipedream_2bw(2, 2, batches=2).csv(), end="")
    0F0,0F1,0B0,0F2,0B1,0O1,0F3,0B2,0B3,0O3
    1F0,1B0,1F1,1B1,1O1,1F2,1B2,1F3,1B3,1O3
    """
    at_least_one(stages=stages, micro_batches=micro_batches, batches=batches)
    least = warm_ups(stages, replicas)[0] + (replicas[0] if replicas else 1)
    if micro_batches < least:
        many = "in flight" if replicas else "stages"
        raise ScheduleError(
            f"micro_batches = {micro_batches}: pipedream_2bw keeps two versions of the weights, which is enough only "
            f"with as many micro-batches as {many}; try {least}"
        )
    order = one_f_one_b(stages, batches * micro_batches, replicas=replicas)
    return updated(order, every=micro_batches, replicas=replicas)


def weight_versions(stage: int, stages: int, *, replicas: Sequence[int] | None = None) -> int:
    """How many versions of its weights *stage* keeps: the newest and the one before it."""
    return 2
