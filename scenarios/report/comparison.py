"""Several runs side by side: keys that differ, numbers, and breakdowns."""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.report.parts import Part, Section, Table, Text
from scenarios.report.summary import breakdown_section, numbers_table
from scenarios.results.differences import differences
from scenarios.results.result import Result
from scenarios.results.step_numbers import StepNumbers


def comparison_section(results: Mapping[str, Result]) -> Section:
    """Return the comparison of *results*, at least two."""
    keys = differences(results)
    steps = {name: one for name, one in results.items() if isinstance(one, StepNumbers)}
    parts: list[Part] = [Table.of_text(["key", *results], keys)] if keys else [Text("All keys are equal.")]
    if steps:
        parts.append(numbers_table(steps))
        parts += breakdown_section({name: one.breakdown for name, one in steps.items()}).parts
    return Section("comparison", "Comparison", parts)
