"""The result of a training step: its numbers and its report."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios.files.plotted import PlottedResult
from scenarios.results.step_numbers import StepNumbers


@dataclass(frozen=True, repr=False)
class StepResult(StepNumbers, PlottedResult):
    """The result of a training step; see `StepNumbers` for its fields."""

    def report(self) -> str:
        """Return the text that `run` prints."""
        from scenarios.results.step_report import step_report

        return step_report(self)
