"""A result: a timeline, the numbers of the summary for scripts, and the report for readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.build.built import BuiltScenario
from simulator.timeline import Timeline


@dataclass(frozen=True)
class Result(ABC):
    """The result of a run of *scenario*."""

    scenario: BuiltScenario

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them.

        They are the same for the same scenario, except ``simulation.wall_s``.
        """

    @abstractmethod
    def report(self) -> str:
        """Return the text that `run` prints."""

    @property
    @abstractmethod
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name: one, or one for each variant."""

    @property
    def runs(self) -> Mapping[str, Result]:
        """The results of single runs by the names of their timelines: this one, or those of the variants."""
        return {self.scenario.name: self}

    @property
    def timeline(self) -> Timeline:
        """The timeline, or that of the first variant."""
        return next(iter(self.timelines.values()))

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, float]]:
        """Seconds of the step by part, for each timeline of a training step."""
        return {}

    @property
    def repeats(self) -> Mapping[str, Sequence[float]]:
        """The step times (s) of all repeats, for each timeline of a scenario with repeats."""
        return {}

    @property
    def fits(self) -> bool:
        """True if every GPU in use has the memory that it needs."""
        return True
