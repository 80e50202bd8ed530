"""The kinds of result: of a training step, of one collective at one or several sizes, and of several runs of one file
side by side. Each can be plotted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.scenarios.build.description import notes
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.results.titles import heading, title
from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.network_traffic import cable_load
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.plain_text import figure, indented
from clustersim.simulator.reading.units import SECONDS_PER_DAY, show, show_long

if TYPE_CHECKING:
    from clustersim.simulator.charts.figures import Figure


@dataclass(frozen=True, repr=False)
class PlottedResult(Result):
    """A result with the charts of `scenarios.results.charts`; a notebook shows its report and its timeline."""

    def _repr_html_(self) -> str:
        """Return the report and the timeline as HTML, the picture within it."""
        from html import escape

        return f'<pre style="line-height: 1.25">{escape(self.report())}</pre>{self._picture()}'

    def _picture(self) -> str:
        """Return the timeline as an image; empty if it cannot be drawn as one, e.g. of very many variants."""
        from base64 import b64encode
        from html import escape

        from clustersim.simulator.charts.canvas import png

        try:
            data = b64encode(png(self.plot())).decode()
        except SimulatorError:
            return ""
        return f'<img alt="timeline of {escape(self.scenario.name)}" src="data:image/png;base64,{data}">'

    def plot(
        self,
        chart: str = "timeline",
        path: Path | str | None = None,
        *,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
        title: str = "",
    ) -> Figure:
        """Return *chart* as a figure; see `Result.plot`."""
        # matplotlib is loaded only to draw
        from clustersim.scenarios.results import charts
        from clustersim.simulator.charts import figures
        from clustersim.simulator.charts.canvas import SUFFIXES
        from clustersim.simulator.reading.files import suffix_of

        if path is not None:
            suffix_of(Path(path), SUFFIXES)
        made = charts.figures(self, chart, ranks, window, title)
        if len(made) > 1:
            raise ScenarioError(
                f"{self.scenario.name} has {len(made)} runs, each with a {chart} chart of its own; "
                f'take one, e.g. result.runs["{next(iter(made))}"].plot("{chart}")'
            )
        (make,) = made.values()
        figure = make()
        if path is not None:
            figures.write(figure, Path(path))
        return figure


@dataclass(frozen=True, repr=False)
class StepResult(StepNumbers, PlottedResult):
    """The result of a training step; see `StepNumbers` for its fields."""

    def report(self) -> str:
        """Return the text that `run` prints."""
        from clustersim.scenarios.results.step_report import step_report

        return step_report(self)


@dataclass(frozen=True, repr=False)
class CollectiveResult(PlottedResult):
    """One collective measured at one or several sizes."""

    _timeline: Timeline
    wall_seconds: float
    host_seconds: Mapping[float, float] = field(default_factory=dict)
    """By size, the time in which one process launches it on all GPUs, if one does."""
    library_choice: CollectiveResult | None = None
    """The same by the algorithm that the library chooses, beside one from a file."""

    def in_short(self) -> str:
        """Return the kind, the ranks and the greatest bus bandwidth."""
        rows, kind = self.rows(), self.scenario.specification.collective.kind  # type: ignore[union-attr]
        most = max(row["busbw"] for row in rows)
        return f"{kind} over {self._timeline.world_size:,} ranks, busbw up to {show(most, 'bandwidth')}"

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name."""
        return {self.scenario.name: self._timeline}

    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them."""
        return {
            "name": self.scenario.name,
            "collective": self.rows(),
            **({"library_choice": self.library_choice.rows()} if self.library_choice else {}),
            **({"cables": load.summary()} if (load := cable_load(self._timeline)) else {}),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each size: bytes, seconds, algbw and busbw in bytes/s, algorithm and protocol."""
        benchmark, timeline = self.scenario.specification.collective, self._timeline
        assert benchmark is not None
        rows = []
        for number, size in enumerate(benchmark.size):
            columns = timeline.columns.values()
            begins, ends = ([getattr(own, name)[own.op == number] for own in columns] for name in ("begin", "end"))
            elapsed = float(np.concatenate(ends).max() - np.concatenate(begins).min())
            seconds = max(elapsed, self.host_seconds.get(size, 0.0))
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
        """Return the text that `run` prints."""
        benchmark = self.scenario.specification.collective
        assert benchmark is not None
        network = self.scenario.specification.network
        title = f"{benchmark.kind} over {self.scenario.derived.ranks} ranks, transport {network.transport}"
        title += f", {network.fidelity}, engine {self._timeline.engine}"
        return f"{heading(self.scenario)}\n\n{title}\n{indented(self.measured())}"

    def measured(self) -> str:
        """Return the table, and how uneven the cables between switches are if the user chose their routing."""
        load, library = cable_load(self._timeline), self.library_choice
        told = [self.table()] + ([load.told()] if load else [])
        if library is not None:
            faster = [theirs["time_s"] / own["time_s"] for own, theirs in zip(self.rows(), library.rows(), strict=True)]
            name = self.scenario.specification.network.transport
            told += [f"by the choice of {name}, {min(faster):.3f} to {max(faster):.3f} times as long:", library.table()]
        return "\n".join(told)

    def table(self) -> str:
        """Return the rows as a table with the columns of nccl-tests."""
        from clustersim.simulator.charts import text_report

        rows = [
            text_report.CollectiveRow(
                row["size_bytes"], row["time_s"], row["algbw"], row["busbw"], row["algorithm"], row["protocol"]
            )
            for row in self.rows()
        ]
        return text_report.collective_table(rows)


@dataclass(frozen=True, repr=False)
class VariantsResult(PlottedResult):
    """The results of several runs of one file, by name."""

    variants: Mapping[str, Result]

    def in_short(self) -> str:
        """Return the runs by name with their numbers, as many as a line holds."""
        return f"{len(self.variants)} runs; " + "; ".join(
            f"{name}: {one.in_short()}" for name, one in self.variants.items()
        )

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name."""
        return {name: result.timeline for name, result in self.variants.items() if result.timelines}

    @property
    def runs(self) -> Mapping[str, Result]:
        """The results of the variants by name."""
        return self.variants

    @property
    def fits(self) -> bool:
        """True if every GPU in use has the memory that it needs."""
        return all(result.fits for result in self.variants.values())

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, float]]:
        """Those of the variants, by name."""
        return {name: parts for name, result in self.variants.items() for parts in result.breakdowns.values()}

    @property
    def repeats(self) -> Mapping[str, Sequence[float]]:
        """Those of the variants, by name."""
        return {name: times for name, result in self.variants.items() for times in result.repeats.values()}

    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them."""
        return {
            "name": self.scenario.name,
            "variants": {name: result.summary() for name, result in self.variants.items()},
        }

    def report(self) -> str:
        """Return the text that `run` prints."""
        return "\n\n".join([title(self.scenario), *side_by_side(self.variants)])


def side_by_side(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield tables with a column for each of *results*."""
    from clustersim.scenarios.results.queue_numbers import QueueNumbers, queues_table
    from clustersim.simulator.charts import text_report

    steps = {name: result for name, result in results.items() if isinstance(result, StepNumbers)}
    if steps:
        yield plain_text.table(numbers(steps), ["", *steps], "lr")
        yield "where the step time went\n" + indented(
            text_report.comparison({name: result.breakdown for name, result in steps.items()})
        )
    queues = {name: result for name, result in results.items() if isinstance(result, QueueNumbers)}
    if queues:
        yield queues_table(queues)
    told = [f"note: {name}: {note}" for name, result in steps.items() for note in notes(result.scenario)]
    if told:
        yield "\n".join(told)
    for name, result in results.items():
        if isinstance(result, CollectiveResult):
            yield f"{name}\n{indented(indented(result.measured()))}"
        elif name not in steps and name not in queues:
            yield f"{name}\n{indented(result.report())}"


def numbers(results: Mapping[str, StepNumbers]) -> list[list[str]]:
    """Return the rows of a table of *results*: the name of a number, and its value for each result."""
    summaries = {name: result.summary() for name, result in results.items()}
    rows = [
        ["step time", *(show(s["step_time_s"], "time") for s in summaries.values())],
        *_percentiles(results),
        ["samples/s", *(figure(s["samples_per_s"]) for s in summaries.values())],
        ["MFU", *(f"{s['mfu']:.1%}" for s in summaries.values())],
        ["memory needed", *(result.need.amount for result in results.values())],
        ["fits", *("yes" if s["memory"]["fits"] else "NO" for s in summaries.values())],
        ["GPUs", *(f"{len(result.timeline.gpu_ranks)}" for result in results.values())],
    ]
    rows += _whole_training(summaries.values())
    if any("compression" in s for s in summaries.values()):
        each = [result.compression for result in results.values()]
        rows.append(["gradients sent, less by", *(f"{one.ratio:.3g} x" if one else "" for one in each)])
    forms = [efficiency.bubble(result.scenario) for result in results.values()]
    if any(forms):
        rows.append(["bubble", *(f"{s['bubble_fraction']:.1%}" for s in summaries.values())])
        rows.append(["  in theory, without recomputation", *(f"{form.fraction:.1%}" if form else "" for form in forms)])
    kinds = dict.fromkeys(kind for s in summaries.values() for kind in s["link_utilisation"])
    for kind in kinds:
        uses = [s["link_utilisation"].get(kind, {"max": 0.0})["max"] for s in summaries.values()]
        if any(uses):
            rows.append([f"busiest {kind}", *(f"{use:.0%}" for use in uses)])
    uneven = [s["cables"]["max_over_mean"] if "cables" in s else 0.0 for s in summaries.values()]
    if any(uneven):
        rows.append(["fullest cable over mean", *(f"{ratio:.2f}" if ratio else "" for ratio in uneven)])
    return rows


def _whole_training(summaries: Collection[Mapping[str, Any]]) -> list[list[str]]:
    """Return rows of the time and the cost of the whole training, where any of *summaries* has them."""
    wholes = [s.get("training") for s in summaries]
    rows = []
    if any(wholes):
        days = [whole["days"] if whole else None for whole in wholes]
        rows.append(["whole training", *(show_long(one * SECONDS_PER_DAY) if one else "" for one in days)])
    if any(whole and whole["cost"] for whole in wholes):
        rows.append(["  cost", *(figure(whole["cost"]) if whole and whole["cost"] else "" for whole in wholes)])
    return rows


def _percentiles(results: Mapping[str, StepNumbers]) -> list[list[str]]:
    """Return rows of the percentiles that any of *results* has."""
    names = dict.fromkeys(name for result in results.values() for name in result.percentiles)
    return [
        [
            f"  {name} of repeats",
            *(show(own[name], "time") if name in (own := one.percentiles) else "" for one in results.values()),
        ]
        for name in names
    ]


HIDDEN = {"name", "description", "variants", "table", "expect", "source", "sources"}
"""Keys without influence on the numbers."""


def differences(results: Mapping[str, Result]) -> list[list[str]]:
    """Return a row for each key, presets included, whose values differ between *results*."""
    values = [_flat(result.scenario.document.data) for result in results.values()]
    keys = dict.fromkeys(key for one in values for key in one)
    rows = [[key, *(one.get(key, "-") for one in values)] for key in keys if not HIDDEN & set(key.split("."))]
    return [row for row in rows if len(set(row[1:])) > 1]


def _flat(data: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(data, dict):
        return {
            key: value
            for name, inner in data.items()
            for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    if isinstance(data, bool) or data is None:
        return {prefix: "none" if data is None else str(data).lower()}
    return {prefix: ", ".join(map(str, data)) if isinstance(data, list) else str(data)}
