"""The measured quantities of a shipped scenario, and the file that stores them.

A quantity has a dotted name, for example `memory.peak_bytes` or `spans.dp.all_reduce.waiting_s`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.result_kinds import VariantsResult
from clustersim.scenarios.specification.loading import shipped
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
from tests.shipped import result_of

FILE = Path(__file__).with_name("golden.json")

DIGITS = 13
"""Significant digits of a stored number. The test compares to 9."""

FOLDERS = ("", "testbed")
"""Folders of `scenarios` with scenarios that users run. Those of `published` have tests of their own."""

SUMMARY = (
    "step_time_s",
    "breakdown_s",
    "bubble_fraction",
    "initial_broadcast_s",
    "mfu",
    "memory.peak_bytes",
    "memory.by_category_bytes",
    "memory.stage_peak_bytes",
    "memory.host_peak_bytes",
    "traffic_bytes",
    "link_traffic_bytes",
    "link_utilisation",
    "simulation.ops",
    "collective",
)
"""Keys of a summary that are stored, with all keys below them."""

DERIVED = ("algbw", "busbw")
"""Names (their last parts) that are not stored: they follow from the size and the time of a collective."""

Value = float | str
Quantities = dict[str, Value]


def scenarios() -> list[str]:
    """The names of all scenarios with golden data, in the order of the file."""
    return [name for folder in FOLDERS for name in shipped(folder)]


def golden() -> dict[str, dict[str, Quantities]]:
    """The stored quantities by scenario and variant. A scenario without variants has one, named ""."""
    stored: dict[str, dict[str, Quantities]] = json.loads(FILE.read_text())
    return stored


def write(quantities: Mapping[str, Mapping[str, Quantities]]) -> None:
    """Store *quantities*, one line each."""
    FILE.write_text(json.dumps(quantities, indent=0, allow_nan=False) + "\n")


def measured(name: str) -> dict[str, Quantities]:
    """The quantities of a shipped scenario by variant."""
    found = result_of(name)
    results = found.variants if isinstance(found, VariantsResult) else {"": found}
    return {variant: quantities(one) for variant, one in results.items()}


def quantities(result: Result) -> Quantities:
    """All stored quantities of one run, rounded to `DIGITS`."""
    summary = flat(result.summary())
    kept = {name: value for name, value in summary.items() if _is_stored(name)}
    found = kept | {"makespan_s": result.timeline.makespan} | flat({"spans": span_sums(result.timeline)})
    return {name: _rounded(value) for name, value in found.items()}


def span_sums(timeline: Timeline) -> dict[str, dict[str, float]]:
    """The spans of all ranks summed by kind of op.

    *count*: number of spans. *duration_s*: sum of end - begin. *waiting_s*: sum of begin - ready. *begin_s*: sum of
    begin. Equal ranks are read once and counted as many times as there are ranks.

    No other function of the golden data reads the columns of a timeline.
    """
    schedule = timeline.schedule
    ranks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, first in enumerate(timeline.representative.tolist()):
        ranks[first, schedule.program_of[rank]].append(rank)
    sums: dict[str, dict[str, float]] = {}
    for (_, program), equal in ranks.items():
        spans = timeline.of(equal[0])
        kinds = np.array(schedule.programs[program].per_op(kind), np.str_)[spans.op]
        for name in np.unique(kinds).tolist():
            of = kinds == name
            begin = spans.begin[of]
            found = {
                "count": float(of.sum()),
                "duration_s": float((spans.end[of] - begin).sum()),
                "waiting_s": float((begin - spans.ready[of]).sum()),
                "begin_s": float(begin.sum()),
            }
            total = sums.setdefault(name, dict.fromkeys(found, 0.0))
            sums[name] = {key: total[key] + len(equal) * value for key, value in found.items()}
    return dict(sorted(sums.items()))


def kind(op: Op) -> str:
    """The kind of *op*: phase of a computation, axis family and kind of a communication, direction of a copy."""
    match op:
        case Compute():
            phase = op.action.phase if op.action else ""
            part = {"R": "recompute", "O": "optimizer"}.get(phase, f"compute.{phase}".rstrip("."))
            return part if op.on == "gpu" else f"{part}.{op.on}"
        case Send():
            return f"{family(op.over)}.send"
        case Recv():
            return f"{family(op.over)}.recv"
        case Collective():
            return f"{family(op.over)}.{op.kind}"
        case Copy():
            return f"copy.{op.to}"
        case Delay():
            return "host"
    raise TypeError(f"{type(op).__name__} is no kind of op")


def flat(nested: Any, name: str = "") -> dict[str, Any]:
    """The leaves of *nested* mappings and lists by dotted name.

    >>> flat({"memory": {"stage_peak_bytes": [5, 7]}})
    {'memory.stage_peak_bytes.0': 5, 'memory.stage_peak_bytes.1': 7}
    """
    if isinstance(nested, list):
        nested = dict(enumerate(nested))
    if not isinstance(nested, Mapping):
        return {name: nested}
    return {
        leaf: value
        for key, below in nested.items()
        for leaf, value in flat(below, f"{name}.{key}" if name else str(key)).items()
    }


def _is_stored(name: str) -> bool:
    return name.rpartition(".")[2] not in DERIVED and any(f"{name}.".startswith(f"{key}.") for key in SUMMARY)


def _rounded(value: Value) -> Value:
    if isinstance(value, str):
        return value
    number = float(value)
    # whole bytes and counts read better without an exponent or a trailing .0
    return int(number) if number.is_integer() and abs(number) < 1e15 else float(f"{number:.{DIGITS}g}")
