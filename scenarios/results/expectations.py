"""Expectations: values from other sources, given in the scenario, that are compared with the simulated ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.validation import near

if TYPE_CHECKING:
    from clustersim.scenarios.build.built import BuiltScenario


@dataclass(frozen=True, slots=True)
class ExpectationOutcome:
    """The *value* of *key* of the result, and the *expected* value with its relative *tolerance*.

    *variant* is the name of the run if there are several. *fitted*: cost parameters were fitted to the expected value.
    """

    key: str
    expected: float
    tolerance: float
    value: float
    source: str
    variant: str = ""
    relative_to: str = ""
    fitted: bool = False

    @property
    def met(self) -> bool:
        """True if the value is within the tolerance."""
        return abs(self.value - self.expected) <= self.tolerance * abs(self.expected)

    @property
    def error(self) -> float:
        """(value - expected) / expected; infinite if 0 was expected and the value differs."""
        difference = self.value - self.expected
        return difference / abs(self.expected) if self.expected else difference and inf * difference

    @property
    def slower(self) -> float:
        """The relative error of the time that the value implies; the time of a rate is its inverse."""
        if is_duration(self.key) or not self.value or not self.expected:
            return self.error
        return self.expected / self.value - 1


def is_duration(key: str) -> bool:
    """Return whether the *key* of a result is a time or memory: a part of it ends with ``_s`` or ``_bytes``.

    >>> is_duration("step_time_s"), is_duration("layer_s.both"), is_duration("samples_per_s"), is_duration("mfu")
    (True, True, False, False)
    """
    return any(part.endswith(("_s", "_bytes")) and not part.endswith("_per_s") for part in key.split("."))


def held(scenario: BuiltScenario, summary: dict[str, Any]) -> list[ExpectationOutcome]:
    """Return the outcome of each expectation of *scenario*, or of its variants, in *summary*.

    Expectations of the file hold for each variant; those with keys that begin with ``variants.`` hold for the whole.
    Raises `ScenarioError` for a key that the result does not have.
    """
    if not scenario.variants:
        return _held(scenario, flat(summary))
    values = {name: flat(one) for name, one in summary["variants"].items()}
    whole = _held(scenario, flat(summary), only="variants.")
    return whole + [
        replace(outcome, variant=name)
        for name, one in scenario.variants.items()
        if name in values
        for outcome in _held(one, values[name], values)
    ]


def _held(
    scenario: BuiltScenario,
    values: Mapping[str, float],
    others: Mapping[str, Mapping[str, float]] | None = None,
    only: str = "",
) -> list[ExpectationOutcome]:
    outcomes = []
    for key, expectation in scenario.specification.expect.items():
        if not key.startswith(only):
            continue
        if key not in values:
            message = f'the result has no number "{key}"'
            raise scenario.document.error(("expect", key), message, near(key, values), at_key=True)
        value = values[key] / _reference(scenario, key, expectation.relative_to, others or {})
        outcomes.append(
            ExpectationOutcome(
                key,
                expectation.value,
                expectation.tolerance,
                value,
                expectation.source,
                relative_to=expectation.relative_to,
                fitted=expectation.fitted,
            )
        )
    return outcomes


def _reference(scenario: BuiltScenario, key: str, name: str, others: Mapping[str, Mapping[str, float]]) -> float:
    """Return the value of *key* of the variant *name*, to which values are relative; 1 without a name."""
    if not name:
        return 1.0
    if name not in others:
        known = f"there are {', '.join(others)}" if others else "there are no variants"
        at = ("expect", key, "relative_to")
        raise scenario.document.error(at, f'there is no variant "{name}"; {known}', near(name, others))
    if not others[name].get(key):
        message = f'"{name}" has no {key} other than 0, so nothing is a multiple of it'
        raise scenario.document.error(("expect", key, "relative_to"), message)
    return others[name][key]


def flat(summary: Any, prefix: str = "") -> dict[str, float]:
    """Return the numbers of *summary* by dotted key.

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


def text(outcomes: list[ExpectationOutcome]) -> str:
    """Return a line for each of *outcomes*."""
    return "\n".join(
        f"{'ok    ' if one.met else 'MISSED'} {_of(one)} = {one.value:.6g}, expected {one.expected:g}"
        f" within {one.tolerance:.3g} of it" + (f" ({one.source})" if one.source else "")
        for one in outcomes
    )


def _of(outcome: ExpectationOutcome) -> str:
    name = f"{outcome.variant}: {outcome.key}" if outcome.variant else outcome.key
    return f"{name} / that of {outcome.relative_to}" if outcome.relative_to else name
