"""A result is a timeline and what it amounts to: the numbers that people script against, and the text they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.build.built import BuiltScenario
from simulator.timeline import Timeline


@dataclass(frozen=True)
class Result(ABC):
    """What came of running *scenario*."""

    scenario: BuiltScenario

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """The numbers, as `run --json` prints them; the same for the same scenario but for ``simulation.wall_s``."""

    @abstractmethod
    def report(self) -> str:
        """The text that `run` prints."""

    @property
    @abstractmethod
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name: one, or one for each variant."""

    @property
    def timeline(self) -> Timeline:
        """The timeline; of several variants the first one's."""
        return next(iter(self.timelines.values()))

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, float]]:
        """Seconds of the step by what they went to, for each timeline of a training step."""
        return {}

    @property
    def repeats(self) -> Mapping[str, Sequence[float]]:
        """The step times (s) of all repeats, for each timeline of a scenario with repeats."""
        return {}

    @property
    def fits(self) -> bool:
        """Whether every GPU in use has the memory that it needs."""
        return True
