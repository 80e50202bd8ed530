"""A result: a timeline, the numbers of the summary for scripts, all of them finite, and the report for readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError

if TYPE_CHECKING:
    from clustersim.simulator.charts.figures import Figure

LONGEST_LINE = 200
"""Characters of a result as one line; a shell and a notebook print it where a result is an expression."""


@dataclass(frozen=True, repr=False)
class Result(ABC):
    """The result of a run of *scenario*."""

    scenario: BuiltScenario

    def __repr__(self) -> str:
        line = f"<{type(self).__name__} {self.scenario.name}: {self.in_short()}>"
        return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 4]}...>"

    @abstractmethod
    def in_short(self) -> str:
        """Return the numbers that are looked at first, as a part of a line."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them.

        They are the same for the same scenario, except ``simulation.wall_s``.
        """

    @abstractmethod
    def report(self) -> str:
        """Return the text that `run` prints."""

    @abstractmethod
    def plot(
        self,
        chart: str = "timeline",
        path: Path | str | None = None,
        *,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
        title: str = "",
    ) -> Figure:
        """Return *chart* as a matplotlib figure, which a notebook shows; also write it to *path* if given.

        *chart*: timeline, pipeline, memory, states, breakdown, links, repeats, critical, operators, activations,
        topology, sweep or steps, as `clustersim plot` draws them. *path*: a ``.png``, ``.svg`` or ``.pdf``. *ranks* and
        *window* (begin and end in s) select what is shown. *title* replaces the title. Of variants, timeline, pipeline,
        states, breakdown and sweep show all in one figure; for other charts take ``result.runs[name].plot(chart)``.
        Raises `SimulatorError`, e.g. for an unknown chart.

        >>> from clustersim.scenarios import Scenario
        >>> figure = Scenario.load("hello").run().plot("timeline", ranks=[0, 1], title="Two of four ranks")
        >>> figure.texts[0].get_text()
        'Two of four ranks'
        """

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


def check_finite(summary: Any, key: str = "") -> None:
    """Raise `ScenarioError` for a number of *summary* that is infinite or none, with its dotted *key*."""
    if isinstance(summary, float) and not isfinite(summary):
        raise ScenarioError(
            f"the result has no finite {key}: {summary}; a quantity of the scenario is far too small or too large"
        )
    items = summary.items() if isinstance(summary, dict) else enumerate(summary) if isinstance(summary, list) else ()
    for name, inner in items:
        check_finite(inner, f"{key}.{name}" if key else str(name))
