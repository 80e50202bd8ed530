"""The result of several runs of one file, side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.build.notes import notes
from scenarios.cost.energy import SECONDS_PER_DAY
from scenarios.files.plotted import PlottedResult
from scenarios.results import theory
from scenarios.results.collective_result import CollectiveResult
from scenarios.results.result import Result
from scenarios.results.step_numbers import StepNumbers
from scenarios.results.text import title
from simulator.analysis import report, text
from simulator.analysis.text import figure, indented
from simulator.timeline import Timeline
from simulator.units import show, show_long


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
        return {name: result.timeline for name, result in self.variants.items()}

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
    steps = {name: result for name, result in results.items() if isinstance(result, StepNumbers)}
    if steps:
        yield text.table(numbers(steps), ["", *steps], "lr")
        yield "where the step time went\n" + indented(
            report.comparison({name: result.breakdown for name, result in steps.items()})
        )
    told = [f"note: {name}: {note}" for name, result in steps.items() for note in notes(result.scenario)]
    if told:
        yield "\n".join(told)
    for name, result in results.items():
        if isinstance(result, CollectiveResult):
            yield f"{name}\n{indented(indented(result.measured()))}"


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
    forms = [theory.bubble(result.scenario) for result in results.values()]
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
