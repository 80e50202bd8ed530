"""The numbers of a real run and of its gap to a scenario, for scripts."""

from __future__ import annotations

from typing import Any

from scenarios.explain.breakdown import busy
from scenarios.explain.calls import Size, sizes
from scenarios.explain.changes import suggestions
from scenarios.explain.comparison import compared
from scenarios.explain.lateness import Noise
from scenarios.explain.run import Run
from scenarios.scenario import Scenario


def summary(run: Run, scenario: Scenario | None) -> dict[str, Any]:
    """Return the numbers as `explain --json` prints them; times in s, bytes, bytes/s."""
    found = {
        "ranks": len(run.traces),
        "world_size": run.world_size,
        "steps": len(run.traces[0].steps),
        "step_time_s": run.step_time,
        "busy_s": busy(run.parts),
        "breakdown_s": run.parts,
        "breakdown_of_ranks_s": {str(rank): parts for rank, parts in run.breakdowns.items()},
        "slowest_rank": _late(run),
        "communications": [
            {
                "kind": one.call.kind, "bytes": one.call.nbytes, "ranks": one.call.ranks, "per_step": one.per_step,
                "transfer_s": one.seconds, "wait_s": one.waited, "busbw": one.busbw,
            }
            for one in sizes(run.traces)
        ],
    }  # fmt: skip
    if scenario is not None:
        found["gap"] = _gap(run, scenario)
    return found


def _size(one: Size) -> dict[str, Any]:
    call = {"kind": one.call.kind, "bytes": one.call.nbytes, "ranks": one.call.ranks, "per_step": one.per_step}
    return {**call, "transfer_s": one.seconds, "wait_s": one.waited, "busbw": one.busbw}


def _late(run: Run) -> dict[str, Any] | None:
    late = run.late
    if late is None:
        return None
    noise = Noise(run.traces)
    told = {"rank": late.rank, "behind_s": late.seconds, "because_s": dict(late.because)}
    return {**told, "steady_s": noise.steady(late), "noise_s": noise.most}


def _gap(run: Run, scenario: Scenario) -> dict[str, Any]:
    timeline, gap = compared(run, scenario)
    better = suggestions(scenario, timeline, gap)
    first = gap.first
    return {
        "scenario": scenario.name,
        "simulated_step_time_s": gap.simulated,
        "gap_s": gap.seconds,
        "causes": [
            {"kind": one.kind, "subject": one.subject, "s": one.seconds, "text": one.text} for one in gap.causes
        ],
        "first_cause": first.kind if first else None,
        "as_measured_s": better.as_measured,
        "changes": [{"text": one.text, "step_time_s": one.step_time} for one in better.changes],
    }
