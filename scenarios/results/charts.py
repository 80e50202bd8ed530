"""The charts of a result: `Result.plot` returns their figures, and `clustersim plot` writes them.

The chart of a sweep shows variants as points over the number in which they differ: batch size, GPUs, bandwidth, size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.memory_need import reserved_memory
from clustersim.scenarios.results.activation_map import activations_chart, axes_of
from clustersim.scenarios.results.jobs_numbers import JobsNumbers
from clustersim.scenarios.results.operator_profile import OperatorRow, Profile, bounds, profile
from clustersim.scenarios.results.queue_numbers import QueueNumbers
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.run_folder import (
    CHARTS,
    OF_COLLECTIVES,
    OF_JOBS,
    OF_QUEUES,
    OF_TRAINING,
    ONLY_OF_JOBS,
    ONLY_OF_QUEUES,
    WITHOUT_RUN,
)
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.results.titles import chart_title, place_title
from clustersim.simulator.charts import figures as plot
from clustersim.simulator.charts.bars import Bar, breakdown_bars, operators_chart, repeats_chart
from clustersim.simulator.charts.canvas import Window, style
from clustersim.simulator.charts.collective_steps import steps_chart
from clustersim.simulator.charts.gantt import MOST_PANELS, PANELS, variants_chart
from clustersim.simulator.charts.jobs import HeldNodes, Row, jobs_chart, nodes_chart, queue_chart, shared_links_chart
from clustersim.simulator.charts.memory import PeakMemory, states_chart
from clustersim.simulator.charts.sweep import SweepPoint, SweepSeries, sweep_chart
from clustersim.simulator.network.library import tuner
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import file_stems
from clustersim.simulator.reading.units import parse, show
from clustersim.simulator.reading.validation import listed, near


def panels(profile: Profile) -> dict[str, list[Bar]]:
    """Return the bars of *profile* by the title of their panel."""
    return {
        "by operator": _bars(profile.by_operator()),
        "by elementary operation": _bars(profile.by_operation()),
        "by class of operation": _bars(profile.by_class()),
    }


def _bars(rows: Mapping[str, OperatorRow]) -> list[Bar]:
    return [Bar(name, row.by_phase, _told(row)) for name, row in rows.items() if row.seconds]


def _told(row: OperatorRow) -> str:
    saved = f"; saves {show(row.saved, 'size', 3)}" if row.saved else ""
    bound = bounds(row)
    return f"bound by {bound}{saved}" if bound != "given" else f"given{saved}"


def check(scenario: BuiltScenario, chart: str) -> None:
    """Raise `ScenarioError` if there is no *chart* of a run of *scenario*."""
    known = (*CHARTS, *WITHOUT_RUN)
    if chart not in known:
        hint = near(chart, known)
        raise ScenarioError(f'there is no chart "{chart}"; draw {listed(known)}' + (f"; {hint}" if hint else ""))
    queues = [one.specification.queue is not None for one in scenario.runs]
    if chart not in OF_QUEUES and any(queues):
        raise ScenarioError(f"{scenario.name} is a queue of jobs; of it there are {listed(OF_QUEUES)}")
    if chart in ONLY_OF_QUEUES and not all(queues):
        raise ScenarioError(
            f"{scenario.name} has no queue; {chart} is that of one, e.g. clustersim plot queue_on_1024_gpus {chart}"
        )
    if chart not in OF_JOBS and any(one.jobs for one in scenario.runs) and not any(queues):
        raise ScenarioError(f"{scenario.name} has several jobs, together; of them there are {listed(OF_JOBS)}")
    if chart in ONLY_OF_JOBS and not all(one.jobs for one in scenario.runs):
        raise ScenarioError(
            f"{scenario.name} is one job; {chart} are those of several, e.g. "
            f"clustersim plot two_jobs_over_spines {chart}"
        )
    if chart in OF_COLLECTIVES and any(one.specification.collective is None for one in scenario.runs):
        raise ScenarioError(
            f"{scenario.name} trains a model; {chart} are those of one collective, e.g. "
            f"clustersim plot allreduce_dgx_a100 {chart}"
        )
    if chart in OF_TRAINING:
        for one in scenario.runs:
            one.check_trains(OF_TRAINING[chart])


def draw_result(
    result: Result, chart: str, path: Path, ranks: Sequence[int] | None, window: Window | None
) -> Iterator[Path]:
    """Draw *chart* of *result* to *path* and yield the files.

    Several timelines share one figure if the chart can hold them; else each has a file, with its name added.
    """
    drawn = figures(result, chart, ranks, window)
    stems = file_stems(drawn)
    for name, make in drawn.items():
        target = path if len(drawn) == 1 else path.with_name(f"{path.stem}_{stems[name]}{path.suffix}")
        plot.write(make(), target)
        yield target


def figures(
    result: Result, chart: str, ranks: Sequence[int] | None = None, window: Window | None = None, title: str = ""
) -> dict[str, Callable[[], plot.Figure]]:
    """Return functions that draw the figures of *chart*: one for all runs of *result*, or one for each by name.

    *title* replaces the title, which tells what ran where.
    """
    check(result.scenario, chart)
    whole, several = title or chart_title(result), len(result.runs) > 1
    if chart == "sweep":
        return {"": lambda: _styled(sweep_chart, variant_points(result), whole)}
    if chart == "states":
        return {"": lambda: _styled(states_chart, _held(result), whole)}
    if chart == "breakdown" and several and result.breakdowns:
        return {"": lambda: _styled(breakdown_bars, result.breakdowns, whole)}
    if chart in PANELS and 1 < len(result.runs) <= MOST_PANELS and len(result.timelines) == len(result.runs):
        return {"": lambda: _styled(variants_chart, result.timelines, chart, ranks, window, whole)}
    return _each(result, chart, ranks, window, title)


def _styled(chart: Callable[..., plot.Figure], *arguments: Any) -> plot.Figure:
    with style():
        return chart(*arguments)


def files_of(result: Result, chart: str) -> int:
    """Return how many files `draw_result` draws at most; 0 for one, whose progress is not known."""
    several = len(result.runs)
    joined = chart in ("sweep", "states", "breakdown") or (chart in PANELS and several <= MOST_PANELS)
    return 0 if several == 1 or joined else several


def _each(
    result: Result, chart: str, ranks: Sequence[int] | None, window: Window | None, title: str
) -> dict[str, Callable[[], plot.Figure]]:
    """Return a function for each run of *result* that draws *chart* of it."""
    runs = {name: one for name, one in result.runs.items() if chart != "repeats" or one.repeats}
    if not runs:
        raise ScenarioError(
            "there are no repeats to draw; give e.g. --set simulation.repeats=20 --set simulation.jitter=0.02"
        )
    of = result.scenario.name
    if chart == "activations":
        return {
            name: partial(activations_chart, one.scenario, axes_of(one.scenario), title) for name, one in runs.items()
        }
    if chart == "repeats":
        return {
            name: partial(_styled, repeats_chart, one.repeats[name], title or place_title(one, of))
            for name, one in runs.items()
        }
    return {
        name: partial(_of_run, one, chart, ranks, window, title or chart_title(one, of)) for name, one in runs.items()
    }


def _of_run(result: Result, chart: str, ranks: Sequence[int] | None, window: Window | None, title: str) -> plot.Figure:
    """Return *chart* of *result*, a single run."""
    if isinstance(result, QueueNumbers):
        return _of_queue(result, chart, window, title)
    timeline = result.timeline
    if isinstance(result, JobsNumbers) and chart == "timeline" and ranks is None:
        firsts = {name: job.first_rank for name, job in result.jobs.items()}
        return _styled(jobs_chart, timeline, firsts, window or result.shown_window, title)
    if isinstance(result, JobsNumbers) and chart == "shared_links":
        return _styled(shared_links_chart, _shared(result), list(result.jobs), title)
    if chart == "steps":
        return _styled(steps_chart, *_steps(result), title)
    if chart == "operators":
        return _styled(operators_chart, panels(profile(result.scenario, timeline)), title)

    def reserved(rank: int) -> float:
        """All ranks are drawn with the fragmentation of the fullest one."""
        return sum(reserved_memory(result.scenario, timeline.schedule, rank, activations=activations).values())

    activations = 0.0
    if isinstance(result, StepNumbers):
        activations = result.memory.peak.by_category.get("activations", 0.0)
    held = reserved if isinstance(result, StepNumbers) else None
    return plot.figure(timeline, chart, ranks=ranks, window=window, title=title, reserved=held)


def _of_queue(result: QueueNumbers, chart: str, window: Window | None, title: str) -> plot.Figure:
    """Return *chart* of a queue: its nodes over time, or how many nodes are held and how many jobs wait."""
    whole = window or (0.0, result.ran.end or 1.0)
    if chart == "timeline":
        leaves = [node for node in range(1, len(result.leaves)) if result.leaves[node] != result.leaves[node - 1]]
        held = [
            HeldNodes(
                record.submission.name,
                record.submission.kind or "plain duration",
                record.start,
                result.ran.end if record.end is None else record.end,
                record.nodes,
            )
            for record in result.records
            if record.start is not None
        ]
        return _styled(nodes_chart, held, len(result.leaves), leaves, whole, title)
    times, held_nodes, waiting = (
        np.array([float(getattr(moment, name)) for moment in result.moments]) for name in ("time", "held", "waiting")
    )
    return _styled(queue_chart, times, held_nodes, waiting, len(result.leaves), whole, title)


MOST_KINDS, MOST_CABLES = 8, 4
"""Kinds of shared links that a chart has, and links of each kind: the fullest."""


def _shared(result: JobsNumbers) -> dict[str, list[Row]]:
    """Return the shares of the fullest shared links of each kind, by the title of their panel and the link."""
    if not result.tiers:
        raise ScenarioError(f"{result.scenario.name} has nothing to draw: no two jobs share a link")
    panels: dict[str, list[Row]] = {}
    for tier in sorted(result.tiers, key=lambda tier: -sum(tier.cables[0].alone.values()))[:MOST_KINDS]:
        rows = panels.setdefault(f"{len(tier.cables)} {tier.kind}, shared by {' + '.join(tier.jobs)}", [])
        for one in tier.cables[:MOST_CABLES]:
            rows += [(f"{one.source} to {one.target}, alone", one.alone), ("together", one.together)]
    return panels


BASIC = {"all_reduce": ("ring", "tree")}
"""Algorithms of a collective that are drawn beside those that ran, as lectures compare them."""


def _steps(result: Result) -> tuple[dict[str, list[Step]], int, float]:
    """Return the steps of the algorithms of a collective by name, its ranks, and its greatest vector in bytes.

    One channel is drawn: the others do the same with their parts of the vector, in other orders of the ranks.
    """
    timeline, collective = result.timeline, result.scenario.specification.collective
    assert collective is not None and timeline.cluster is not None
    places: dict[int | str, list[int]] = {}
    for rank in timeline.gpu_ranks:
        places.setdefault(timeline.cluster.node_of(timeline.devices[rank]), []).append(rank)
    size, nbytes = len(timeline.gpu_ranks), max(collective.size)
    group = Group(size, tuple(map(tuple, places.values())))
    ran = [name for (_, kind, _), (name, _) in timeline.algorithms.items() if kind == collective.kind]
    names = dict.fromkeys([*ran, *BASIC.get(collective.kind, ())])
    return {name: tuner.steps(name, collective.kind, group, nbytes, 0) for name in names}, size, nbytes


def _held(result: Result) -> dict[str, PeakMemory]:
    """Return the peak memory of each run of *result*, with the reserved memory of its fullest GPU."""
    steps = {name: one for name, one in result.runs.items() if isinstance(one, StepNumbers)}
    if not steps:
        raise ScenarioError(f"{result.scenario.name} measures a collective; it has no memory to draw")
    return {
        name: PeakMemory({**one.memory.peak.by_category, "reserved": sum(one.reserved.values())}, one.capacity)
        for name, one in steps.items()
    }


HIDDEN = {"name", "description", "variants", "table", "expect", "source", "sources"}
"""Keys without influence on the numbers."""
DIMENSIONS = ("size", "bandwidth", "time")

Number = tuple[float, str]
"""A value and its dimension, a key of `simulator.reading.units.UNITS`; "" for a plain number."""


def variant_points(result: Result) -> SweepSeries:
    """Return the points of *result*: of collectives over the size, of training steps over the first key that varies.

    Variants that differ in other keys too are different series if they share a number. Raises `ScenarioError` if
    there is no number to put on x.
    """
    runs = result.runs
    if all(one.scenario.specification.collective is not None for one in runs.values()):
        return _sizes(runs)
    values = {name: _flat(_data(one)) for name, one in runs.items() if isinstance(one, StepNumbers)}
    keys = list(dict.fromkeys(key for one in values.values() for key in one))
    differing = [key for key in keys if len({repr(one.get(key)) for one in values.values()}) > 1]
    numbers = {key: [number_of(one.get(key)) for one in values.values()] for key in differing}
    numeric = [key for key, several in numbers.items() if _one_dimension(several)]
    if not numeric:
        what = f"its variants differ in {', '.join(differing)}" if differing else "it has no variants that differ"
        raise ScenarioError(f"{result.scenario.name} has no number to put on x: {what}")
    x = max(numeric, key=lambda key: len(set(numbers[key])))
    places = dict(zip(values, numbers[x], strict=True))
    series: dict[str, list[SweepPoint]] = {}
    for name, place in places.items():
        one = runs[name]
        assert isinstance(one, StepNumbers)
        assert place is not None
        other = _series(values, places, [key for key in differing if key != x], name)
        series.setdefault(other, []).append(SweepPoint(place[0], _heights(one)))
    first = next(place for place in places.values() if place is not None)
    return SweepSeries(x, first[1], series)


def _data(result: Result) -> Any:
    return result.scenario.source.data


def _heights(result: StepNumbers) -> dict[str, float]:
    mfu = result.summary()["mfu"]
    return {"step time": result.timeline.step_time, **({"MFU": mfu} if mfu else {})}


def _sizes(runs: Mapping[str, Result]) -> SweepSeries:
    series: dict[str, list[SweepPoint]] = {}
    for name, one in runs.items():
        series[name if len(runs) > 1 else ""] = [
            SweepPoint(row["size_bytes"], {"time": row["time_s"], "busbw": row["busbw"]})
            for row in one.summary()["collective"]
        ]
    return SweepSeries("collective.size", "size", series)


def _series(
    values: Mapping[str, Mapping[str, Any]], places: Mapping[str, Number | None], others: Sequence[str], name: str
) -> str:
    """Return the series of *name*: the values of the fewest *others*, in order, that tell points of one x apart."""
    if len(set(places.values())) == len(places):
        return ""
    chosen: list[str] = []
    for key in others:
        points = {(places[one], *(repr(values[one].get(k)) for k in chosen)) for one in values}
        if len(points) == len(values):
            break
        more = {(places[one], *(repr(values[one].get(k)) for k in (*chosen, key))) for one in values}
        chosen += [key] if len(more) > len(points) else []
    return ", ".join(f"{key.rpartition('.')[2]} {values[name].get(key, 'default')}" for key in chosen)


def _one_dimension(several: Sequence[Number | None]) -> bool:
    """Return whether all are numbers, of one dimension and not all equal."""
    return all(one is not None for one in several) and len({one[1] for one in several if one}) == 1 < len(set(several))


def number_of(value: Any) -> Number | None:
    """Return the number and the dimension of a *value* of a scenario; None if it is no number and no quantity."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), ""
    for dimension in DIMENSIONS if isinstance(value, str) else ():
        try:
            return parse(value, dimension), dimension
        except ValueError:
            continue
    return None


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of *data* by dotted key, without `HIDDEN` keys."""
    if not isinstance(data, dict):
        return {prefix: data}
    return {
        key: value
        for name, inner in data.items()
        if prefix or name not in HIDDEN
        for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }
