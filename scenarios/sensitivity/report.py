"""The numbers and the report of sensitivities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.plan.changes import Change
from scenarios.results.text import batch, heading
from scenarios.sensitivity.elasticity import SLOWER, Sensitivities, Sensitivity, largest
from simulator.analysis.percentiles import percentiles
from simulator.analysis.text import indented, table
from simulator.units import show

LEAST = 5e-4
"""Relative change below which a parameter does not change the step time: it is told in one line."""

MOST_GAINS = 6
"""Changes that are told as what would help most."""


@dataclass(frozen=True)
class Found:
    """The *sensitivities* of a scenario, the *changes* that were tried, and step times (s) by the *uncertainty*."""

    sensitivities: Sensitivities
    changes: Sequence[Change]
    uncertainty: Sequence[float]

    @property
    def step_time(self) -> float:
        """The step time, s."""
        return self.sensitivities.step_time

    @property
    def each(self) -> dict[str, Sensitivity]:
        """The sensitivities by parameter."""
        return self.sensitivities.each

    @property
    def relative(self) -> dict[str, tuple[float, float]]:
        """By parameter the relative changes of the step time if it is halved and if it is doubled."""
        step = self.step_time
        return {name: (one.halved / step - 1.0, one.doubled / step - 1.0) for name, one in self.each.items()}


def summary(found: Found) -> dict[str, Any]:
    """Return the numbers that `sensitivity --json` prints."""
    each = found.each
    return {
        "name": found.sensitivities.base.scenario.name,
        "step_time_s": found.step_time,
        "elasticity": {name: one.elasticity for name, one in each.items()},
        "elasticity_if_lowered": {name: one.lowered for name, one in each.items()},
        "elasticity_if_raised": {name: one.raised for name, one in each.items()},
        "critical_path_elasticity": {name: one.critical for name, one in each.items() if one.critical is not None},
        "halved_s": {name: one.halved for name, one in each.items()},
        "doubled_s": {name: one.doubled for name, one in each.items()},
        "stragglers_s": {str(rank): seconds for rank, seconds in found.sensitivities.stragglers.items()},
        "changes": [{"set": dict(one.values), "step_time_s": one.step_time, "fits": one.fits} for one in found.changes],
        "uncertainty_s": percentiles(found.uncertainty) if found.uncertainty else None,
    }


def report(found: Found) -> str:
    """Return the text that `sensitivity` prints."""
    scenario = found.sensitivities.base.scenario
    parts = [
        f"{heading(scenario)}; {batch(scenario)}",
        f"step time {show(found.step_time, 'time')}",
        _table(found),
        _stragglers(found),
        "\n".join(_helps(found)),
        _uncertain(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(found: Found) -> str:
    moving = {name: one for name, one in found.each.items() if max(map(abs, found.relative[name])) >= LEAST}
    rows = []
    for name, one in moving.items():
        halved, doubled = found.relative[name]
        path = "" if one.critical is None else f"{one.critical:+.3f}"
        sides = [f"{one.lowered:+.3f}", f"{one.raised:+.3f}"]
        rows.append([name, f"{one.elasticity:+.3f}", *sides, path, f"{halved:+.1%}", f"{doubled:+.1%}"])
    header = ["parameter", "elasticity", "lowered", "raised", "critical path", "halved", "doubled"]
    lines = [indented(table(rows, header, "lr"))] if rows else []
    still = [name for name in found.each if name not in moving]
    if still:
        lines.append(f"  without influence: {', '.join(still)}")
    return "change of the step time with each parameter\n" + "\n".join(lines)


def _stragglers(found: Found) -> str:
    """Return what one slow GPU costs: all of it where others wait for it, little where its stage has time left."""
    costs = {rank: seconds / found.step_time - 1.0 for rank, seconds in found.sensitivities.stragglers.items()}
    if not costs:
        return ""
    told = [f"rank {rank} {cost:+.1%}" for rank, cost in costs.items()]
    return f"price of one GPU that computes {SLOWER - 1:.0%} slower, by the first rank of each stage: {', '.join(told)}"


def _helps(found: Found) -> Iterator[str]:
    """Yield what would shorten the step most: parameters of the machine, then changes of the configuration."""
    step = found.step_time
    gains = [one for one in largest(found.each, step) if one[2] >= LEAST * step][:MOST_GAINS]
    if gains:
        yield "what would help most"
        rows = [[f"{name} {what}", f"{gain / step:.1%} less"] for name, what, gain in gains]
        yield indented(table(rows, align="lr"))
    times = [(one.step_time, one) for one in found.changes if one.step_time is not None and one.need is not None]
    better = sorted((pair for pair in times if step - pair[0] >= LEAST * step), key=lambda pair: pair[0])
    for seconds, one in better:
        need = "" if one.fits or one.need is None else f"; needs {one.need.amount}: a GPU with more memory"
        yield f"  {one.text}: {show(seconds, 'time')}, {1 - seconds / step:.1%} less{need}"
    worse = [pair[1] for pair in times if pair not in better]
    if worse:
        yield f"  no gain: {', '.join(one.text for one in worse)}"


def _uncertain(found: Found) -> str:
    if not found.uncertainty:
        return ""
    shown = ", ".join(f"{name} {show(value, 'time')}" for name, value in percentiles(found.uncertainty).items())
    return f"by the uncertainty of the calibration, {len(found.uncertainty)} draws: {shown}"
