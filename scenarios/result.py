"""A result is a timeline and what it amounts to: the numbers that people script against, and the text they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.analysis import metrics
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from scenarios.built import BuiltScenario


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


@dataclass(frozen=True)
class CollectiveResult(Result):
    """One collective measured at one or several sizes."""

    _timeline: Timeline
    wall_seconds: float

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name."""
        return {self.scenario.name: self._timeline}

    def summary(self) -> dict[str, Any]:
        """The numbers, as `run --json` prints them."""
        return {
            "name": self.scenario.name,
            "collective": self.rows(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One for each size: bytes, seconds, algbw and busbw in bytes/s, algorithm and protocol."""
        benchmark, timeline = self.scenario.specification.collective, self._timeline
        assert benchmark is not None
        rows = []
        for number, size in enumerate(benchmark.size):
            columns = timeline.columns.values()
            begins, ends = ([getattr(own, name)[own.op == number] for own in columns] for name in ("begin", "end"))
            seconds = float(np.concatenate(ends).max() - np.concatenate(begins).min())
            algorithm, protocol = timeline.algorithms.get(("all", benchmark.kind, size), ("", ""))
            rows.append(
                {
                    "size_bytes": size,
                    "time_s": seconds,
                    "algbw": metrics.algbw(size, seconds),
                    "busbw": metrics.busbw(benchmark.kind, size, timeline.world_size, seconds),
                    "algorithm": algorithm,
                    "protocol": protocol,
                }
            )
        return rows

    def report(self) -> str:
        """The text that `run` prints."""
        from scenarios.report import collective_report

        return collective_report(self)


@dataclass(frozen=True)
class VariantsResult(Result):
    """Several runs of one file, each with a change."""

    variants: Mapping[str, Result]

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name."""
        return {name: result.timeline for name, result in self.variants.items()}

    @property
    def fits(self) -> bool:
        """Whether every GPU in use has the memory that it needs."""
        return all(result.fits for result in self.variants.values())

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, float]]:
        """Those of the variants."""
        return {name: parts for name, result in self.variants.items() for parts in result.breakdowns.values()}

    @property
    def repeats(self) -> Mapping[str, Sequence[float]]:
        """Those of the variants."""
        return {name: times for name, result in self.variants.items() for times in result.repeats.values()}

    def summary(self) -> dict[str, Any]:
        """The numbers, as `run --json` prints them."""
        return {
            "name": self.scenario.name,
            "variants": {name: result.summary() for name, result in self.variants.items()},
        }

    def report(self) -> str:
        """The text that `run` prints."""
        from scenarios.report import variants_report

        return variants_report(self)
