"""Varuna: backward as soon as the gradient arrives, and recomputation timed to end at that moment.

Athlur et al., "Varuna: Scalable, Low-cost Training of Massive Deep Learning Models", EuroSys 2022 (arXiv:2111.04007).
The order is that of its scheduler, with slots of one for F and R and two for B: the gradient of the input first, that
of the weights second. The last stage recomputes nothing.
"""

from __future__ import annotations

from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import at_least_one

SEARCHED = False
"""`plan` tries it if the scenario names it: no common stack for large models runs it by default."""

RECOMPUTES_LATE = True
"""Where durations are given, recomputation starts so late that it ends when the gradient is due."""


def varuna(stages: int, micro_batches: int) -> Order:
    """The order of *stages* pipeline ranks over *micro_batches*. Raises `ScheduleError` for counts below 1.

    >>> print(varuna(2, 3).csv(), end="")
    0F0,0F1,0F2,0R0,0B0,0R1,0B1,0R2,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    line = [dict.fromkeys("FRIW", 0) for _ in range(stages)]
    rows: list[list[Action]] = [[] for _ in range(stages)]
    while any(done["W"] < micro_batches for done in line):
        turns = [_turn(line, stage, micro_batches) for stage in range(stages)]
        for stage, phase in enumerate(turns):
            if phase in ("F", "R", "I"):
                rows[stage].append(Action("B" if phase == "I" else phase, stage, line[stage][phase]))
            if phase:
                line[stage][phase] += 1
    return Order(tuple(map(tuple, rows)))


def _turn(line: list[dict[str, int]], stage: int, micro_batches: int) -> str:
    """The phase that *stage* runs in this slot: the first that can run of W, I, R and F; "" if none can.

    *line* counts the micro-batches that each stage has run in each phase; they pass every phase in order. A
    recomputation begins after the next stage's I of the same micro-batch, and takes as long as the W there: when it
    ends, the gradient has arrived.
    """
    done, last = line[stage], stage == len(line) - 1
    arrived = micro_batches if stage == 0 else line[stage - 1]["F"]
    if done["W"] < done["I"]:
        return "W"
    if done["I"] < done["F" if last else "R"]:
        return "I"
    if not last and done["R"] < line[stage + 1]["I"]:
        return "R"
    return "F" if done["F"] < arrived else ""
