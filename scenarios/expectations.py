"""Expectations are values that a scenario's author has from elsewhere, held against what was simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.document.validation import near

if TYPE_CHECKING:
    from scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Outcome:
    """*key* of the result was expected to be *expected* within the relative *tolerance*, and is *value*."""

    key: str
    expected: float
    tolerance: float
    value: float
    source: str

    @property
    def met(self) -> bool:
        """Whether the value is within the tolerance."""
        return abs(self.value - self.expected) <= self.tolerance * abs(self.expected)


def held(scenario: Scenario, summary: dict[str, Any]) -> list[Outcome]:
    """Each expectation of *scenario* against *summary*. Raises `ScenarioError` for a key that the result lacks."""
    outcomes = []
    values = flat(summary)
    for key, expectation in scenario.specification.expect.items():
        if key not in values:
            message = f'the result has no number "{key}"'
            raise scenario.document.error(("expect", key), message, near(key, values), at_key=True)
        outcomes.append(Outcome(key, expectation.value, expectation.tolerance, values[key], expectation.source))
    return outcomes


def flat(summary: Any, prefix: str = "") -> dict[str, float]:
    """The numbers of *summary* by dotted key.

    >>> flat({"step_time_s": 2.0, "memory": {"fits": True, "stage_peak_bytes": [5]}})
    {'step_time_s': 2.0, 'memory.stage_peak_bytes.0': 5}
    """
    if isinstance(summary, dict | list):
        items = summary.items() if isinstance(summary, dict) else enumerate(summary)
        return {
            key: value
            for name, inner in items
            for key, value in flat(inner, f"{prefix}.{name}" if prefix else f"{name}").items()
        }
    return {prefix: summary} if isinstance(summary, int | float) and not isinstance(summary, bool) else {}


def told(outcomes: list[Outcome]) -> str:
    """One line for each expectation."""
    return "\n".join(
        f"{'ok    ' if one.met else 'MISSED'} {one.key} = {one.value:.6g}, expected {one.expected:g}"
        f" within {one.tolerance:.3g} of it" + (f" ({one.source})" if one.source else "")
        for one in outcomes
    )
