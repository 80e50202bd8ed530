"""The next best change against a pipeline's bubble, with its gain from one simulation of the changed scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from scenarios.results import theory
from scenarios.results.step_numbers import StepNumbers
from scenarios.scenario import Scenario
from simulator.analysis.bubble import Bubble, explained
from simulator.errors import SimulatorError
from simulator.units import show
from workloads.stages import ENDS

LEAST_BUBBLE = 0.02
"""Share of the step time from which a bubble is worth a change."""

LEAST_GAIN = 0.005
"""Share of the step time from which a gain is told."""

MOST_SPANS, FEW_SPANS = 1_000_000, 100_000
"""Spans of all representatives above which no change is simulated (one takes seconds), and up to which `TRIALS` are."""

TRIALS = 2
"""Changes that are simulated if that is quick; else the most promising one only."""

Change = Mapping[str, Any]
"""Values by dotted key."""


def next_change(scenario: Scenario, result: StepNumbers) -> str:
    """Return a line with the most promising change against the bubble and the step time with it.

    Empty if the bubble is small, the run is large, or the change gains nothing.
    """
    form = theory.bubble(scenario)
    step = result.timeline.step_time
    spans = sum(len(own.op) for own in result.timeline.columns.values())
    if form is None or spans > MOST_SPANS or result.breakdown["bubble"] < LEAST_BUBBLE * step:
        return ""
    causes = explained(result.timeline, form.fraction)
    if causes is None:
        return ""
    found: list[tuple[float, str]] = []
    for change in islice(_changes(scenario, causes), TRIALS if spans <= FEW_SPANS else 1):
        try:
            changed = scenario.changed(change, "the next change").run()
        except SimulatorError:
            continue
        assert isinstance(changed, StepNumbers)
        found.append((changed.timeline.step_time, _line(change, result, changed)))
    return min((one for one in found if one[1]), default=(0.0, ""))[1]


def _line(change: Change, before: StepNumbers, after: StepNumbers) -> str:
    """Return the gain of *change* as text; empty if there is none, or if memory does not suffice any more."""
    old, new = before.timeline.step_time, after.timeline.step_time
    if old - new < LEAST_GAIN * old or (before.fits and not after.fits):
        return ""
    what = " ".join(f"--set {key}={_text(value)}" for key, value in change.items())
    return f"next change: {what}: {show(old, 'time')} -> {show(new, 'time')}, {(old - new) / old:.1%} less (simulated)"


def _text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, list) else str(value)


def _changes(scenario: Scenario, causes: Bubble) -> Iterator[Change]:
    """Yield changes against the largest cause that a change of keys can lessen, the most promising first."""
    if causes.unequal_stages > causes.fill_and_drain:
        yield from _layout(scenario, causes)
        yield from _more_stages(scenario)
    else:
        yield from _more_stages(scenario)
        yield from _layout(scenario, causes)
    yield from _smaller_micro_batches(scenario)


def _more_stages(scenario: Scenario) -> Iterator[Change]:
    """Yield an interleaved order: v virtual stages divide fill and drain by v (arXiv:2104.04473, section 2.2)."""
    parallelism, derived, model = scenario.specification.parallelism, scenario.derived, scenario.model
    assert model is not None
    pp, virtual = derived.degree("pp"), 2 * parallelism.stages_per_rank
    layers = sum(layer.kind not in ENDS for layer in model.layers)
    fitting = derived.micro_batches % pp == 0 and layers % (pp * virtual) == 0
    if parallelism.order_name in ("gpipe", "one_f_one_b", "interleaved") and fitting and parallelism.layout is None:
        yield {"parallelism.schedule": "interleaved", "parallelism.virtual_stages": virtual}


def _smaller_micro_batches(scenario: Scenario) -> Iterator[Change]:
    size = scenario.derived.micro_batch_size
    if size % 2 == 0:
        yield {"training.micro_batch_size": size // 2}


def _layout(scenario: Scenario, causes: Bubble) -> Iterator[Change]:
    """Yield a layout with a layer fewer on the slowest stage, and one more on the stage with fewest layers.

    It promises a gain if the slowest stage works a whole layer longer than the mean.
    """
    parallelism, pp = scenario.specification.parallelism, scenario.derived.degree("pp")
    if parallelism.stages_per_rank > 1 or scenario.model is None:
        return
    layers = sum(layer.kind not in ENDS for layer in scenario.model.layers)
    if isinstance(parallelism.layout, list):
        counts = list(parallelism.layout)
    elif layers % pp == 0:
        counts = [layers // pp] * pp
    else:
        return
    if causes.excess * layers / pp <= 1:
        return
    counts[causes.slowest] -= 1
    others = [stage for stage in range(pp) if stage != causes.slowest]
    counts[min(others, key=lambda stage: (counts[stage], abs(stage - pp / 2)))] += 1
    if counts[causes.slowest] > 0:
        yield {"parallelism.layout": counts}
