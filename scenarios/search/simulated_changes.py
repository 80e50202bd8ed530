"""Changes of a scenario that are simulated: each with its step time, and the next best one against a bubble."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from clustersim.scenarios.alternatives.changes import Change, against_bubble
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.run import running
from clustersim.scenarios.run.running import Watch
from clustersim.simulator.analysis.metrics import bubble_causes
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show

LEAST_BUBBLE = 0.02
"""Share of the step time from which a bubble is worth a change."""

LEAST_GAIN = 0.005
"""Share of the step time from which a gain is told."""

MOST_SPANS, FEW_SPANS = 1_000_000, 100_000
"""Spans of all representatives above which no change is simulated (one takes seconds), and up to which `TRIALS` are."""

TRIALS = 2
"""Changes that are simulated if that is quick; else the most promising one only."""


def tried(scenario: BuiltScenario, several: Iterable[Change], watch: Watch | None = None) -> Iterator[Change]:
    """Yield those of *several* changes that can be made, with the step time and the memory of their simulation."""
    for one in several:
        try:
            result = running.run(one.of(scenario), watch)
        except SimulatorError:
            continue
        assert isinstance(result, StepNumbers)
        yield replace(one, step_time=_mean(result), need=result.need)


def _mean(result: StepNumbers) -> float:
    times = result.step_times or (result.timeline.step_time,)
    return sum(times) / len(times)


def next_change(scenario: BuiltScenario, result: StepNumbers) -> str:
    """Return a line with the most promising change against the bubble and the step time with it.

    Empty if the bubble is small, the run is large, or the change gains nothing.
    """
    form = efficiency.bubble(scenario)
    step = _mean(result)
    spans = sum(len(own.op) for own in result.timeline.columns.values())
    if form is None or spans > MOST_SPANS or result.breakdown["bubble"] < LEAST_BUBBLE * step:
        return ""
    causes = bubble_causes(result.timeline, form.fraction)
    if causes is None:
        return ""
    several = islice(against_bubble(scenario, causes), TRIALS if spans <= FEW_SPANS else 1)
    gains = [
        (step - one.step_time, one)
        for one in tried(scenario, several)
        if one.step_time is not None and (one.fits or not result.fits)
    ]
    gain, best = max(gains, key=lambda pair: pair[0], default=(0.0, Change()))
    if gain < LEAST_GAIN * step:
        return ""
    return (
        f"next change: {best.options}: {show(step, 'time')} -> {show(step - gain, 'time')}, "
        f"{gain / step:.1%} less (simulated)"
    )
