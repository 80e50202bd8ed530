"""PipeDream: 1F1B that never drains; an update of the stage's weights follows each backward.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019 (arXiv:1806.03377). A
micro-batch runs backward with the weights it ran forward with, so stage s of p stashes p - s versions. In the steady
state there is no bubble: an update comes every F + B. Replicas of a stage take micro-batches round-robin (1F1B-RR).
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.pipelines._row_patterns import updated, warm_ups
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""


def pipedream(stages: int, micro_batches: int, *, replicas: Sequence[int] | None = None) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*, numbered consecutively; each is a batch.

    The first p - 1 fill the pipeline and the last p - 1 drain it; in between it is in its steady state. *replicas*: how
    many ranks share the micro-batches of each stage. Raises `ScheduleError` for counts below 1.

    >>> print(pipedream(2, 3).csv(), end="")
    0F0,0F1,0B0,0O0,0F2,0B1,0O1,0B2,0O2
    1F0,1B0,1O0,1F1,1B1,1O1,1F2,1B2,1O2
    """
    return updated(one_f_one_b(stages, micro_batches, replicas=replicas), every=1)


def weight_versions(stage: int, stages: int, *, replicas: Sequence[int] | None = None) -> int:
    """How many versions of its weights *stage* keeps: one for each micro-batch that a replica has in flight."""
    own = replicas[stage] if replicas else 1
    return warm_ups(stages, replicas)[stage] // own + 1
