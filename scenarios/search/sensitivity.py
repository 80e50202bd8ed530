"""Elasticities: the relative change of the step time over that of a parameter, by simulation and by the critical path;
and changes of a scenario that are simulated, with the next best one against a bubble.

An elasticity e predicts T(f p) = T(p) f^e. By simulation it is a central difference over changes of 10 %, and one for
each side, since a bottleneck ends where the next one begins. By the critical path it is the share of the path's
computation that scales with the parameter, which is exact while the path and the rates of transfers stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from math import log
from typing import Any

import numpy as np

from clustersim.scenarios.alternatives.changes import Change, against_bubble
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.results.titles import batch, heading
from clustersim.scenarios.run import running
from clustersim.scenarios.run.running import Watch
from clustersim.scenarios.search.varied_machine import Scale, VariedMachine, parameters
from clustersim.simulator.analysis.critical_path import CriticalPath, critical_path
from clustersim.simulator.analysis.metrics import bubble_causes, percentiles
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.pricing import Pricing
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.plain_text import indented, table
from clustersim.simulator.reading.units import show

STEP = 1.1
"""Factor on a parameter for differences, and its inverse."""

OF_DURATIONS = ("gpu.peak", "gpu.memory_bandwidth", "gpu.speed", "software.launch")
"""Parameters that change durations of computations and nothing else."""

SLOWER, MOST_SLOW = 1.1, 8
"""Factor on the computing times of one straggler, and how many are tried one after the other."""

WIDE = 2.0
"""Factor by which a parameter is raised and lowered to see what a large change does."""


@dataclass(frozen=True)
class Sensitivity:
    """The elasticities of a parameter if it is *lowered* and *raised*; *critical*: by the critical path.

    *halved*, *doubled*: the step time (s) with half and twice the parameter.
    """

    lowered: float
    raised: float
    halved: float
    doubled: float
    critical: float | None = None

    @property
    def elasticity(self) -> float:
        """The elasticity by the central difference."""
        return (self.lowered + self.raised) / 2

    @property
    def swing(self) -> float:
        """The largest change of the step time by the wide changes, s."""
        return abs(self.doubled - self.halved)

    def predicted(self, step: float, factor: float) -> float:
        """Return the step time for the parameter times *factor*, where it is *step* (s) now."""
        return float(step * factor ** (self.raised if factor > 1 else self.lowered))


@dataclass(frozen=True)
class Sensitivities:
    """The *timeline* of a run on the machine *base*, and *watch*, which is called with each further simulation."""

    base: VariedMachine
    timeline: Timeline
    watch: Watch | None = None

    @cached_property
    def parameters(self) -> Mapping[str, Scale]:
        """The parameters by name."""
        return parameters(self.base, self.timeline)

    @cached_property
    def step_time(self) -> float:
        """The step time, the mean of the repeats, s."""
        repeats = self.base.scenario.specification.simulation.repeats
        return self.timeline.step_time if repeats == 1 else self.base.step_time(self.watch)

    @cached_property
    def each(self) -> dict[str, Sensitivity]:
        """The sensitivities by parameter, the largest change first."""
        found = {name: self._of(name, scale) for name, scale in self.parameters.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1].swing))

    @cached_property
    def stragglers(self) -> dict[int, float]:
        """The step time (s) if one GPU is slower by `SLOWER`: the first rank of each program, the first `MOST_SLOW`.

        Ranks of one program do the same work, so each stands for the others of its stage.
        """
        schedule = self.timeline.schedule
        first = {program: rank for rank, program in reversed(list(enumerate(schedule.program_of)))}
        gpus = sorted(rank for program, rank in first.items() if schedule.programs[program].on == "gpu")
        return {rank: self._slowed(rank).step_time(self.watch) for rank in gpus[:MOST_SLOW]}

    def _slowed(self, rank: int) -> VariedMachine:
        varied = self.base.variation
        slow = {**varied.stragglers, rank: varied.stragglers.get(rank, 1.0) * SLOWER}
        return replace(self.base, variation=replace(varied, stragglers=slow))

    def at(self, name: str, factor: float) -> float:
        """Return the step time with the parameter *name* multiplied by *factor*, by simulation, s."""
        return self.parameters[name](self.base, factor).step_time(self.watch)

    def _of(self, name: str, scale: Scale) -> Sensitivity:
        critical = self.by_path(name, scale) if name in OF_DURATIONS else None
        step = self.step_time
        lowered, raised = (log(self.at(name, factor) / step) / log(factor) for factor in (1 / STEP, STEP))
        return Sensitivity(lowered, raised, self.at(name, 1 / WIDE), self.at(name, WIDE), critical)

    @cached_property
    def path(self) -> CriticalPath | None:
        """The critical path; None if the run is too large to keep every span."""
        return critical_path(self.timeline) if self.timeline.totals is None else None

    def by_path(self, name: str, scale: Scale) -> float | None:
        """Return the elasticity of the parameter *name*, one of `OF_DURATIONS`, by the critical path."""
        if self.path is None or not self.step_time:
            return None
        rest = self.step_time - self._seconds(self.base, self.path)
        low, high = (rest + self._seconds(scale(self.base, factor), self.path) for factor in (1 / STEP, STEP))
        return log(high / low) / (2 * log(STEP))

    def _seconds(self, changed: VariedMachine, path: CriticalPath) -> float:
        """Return the seconds of the computations on *path* if *changed* priced them."""
        before, after = self._price(self.base), self._price(changed)
        total, seconds = 0.0, path.per_step()
        for rank in np.unique(path.rank).tolist():
            mine = path.rank == rank
            where = path.step[mine], path.op[mine]
            old, new = before(rank)[where], after(rank)[where]
            total += float((seconds[mine] * np.divide(new, old, out=np.zeros_like(new), where=old > 0)).sum())
        return total

    def _price(self, priced: VariedMachine) -> Callable[[int], np.ndarray]:
        simulation = priced.simulation()
        communicator = simulation.communicator
        return Pricing(
            simulation.schedule, communicator.cluster, communicator.devices, priced.software, priced.variation
        ).durations


def largest(each: Mapping[str, Sensitivity], step: float) -> Iterator[tuple[str, str, float]]:
    """Yield (parameter, what is done, saved seconds) for each parameter that saves time, the largest saving first."""
    gains = {name: max((step - one.doubled, "doubled"), (step - one.halved, "halved")) for name, one in each.items()}
    for name, (gain, what) in sorted(gains.items(), key=lambda item: -item[1][0]):
        if gain > 0:
            yield name, what, gain


LEAST = 5e-4
"""Relative change below which a parameter does not change the step time: it is told in one line."""

MOST_GAINS = 6
"""Changes that are told as what would help most."""


@dataclass(frozen=True)
class Found:
    """The *sensitivities* of a scenario, the *changes* that were tried, and step times (s) by the *uncertainty*."""

    sensitivities: Sensitivities
    changes: Sequence[Change]
    uncertainty: Sequence[float]

    @property
    def step_time(self) -> float:
        """The step time, s."""
        return self.sensitivities.step_time

    @property
    def each(self) -> dict[str, Sensitivity]:
        """The sensitivities by parameter."""
        return self.sensitivities.each

    @property
    def relative(self) -> dict[str, tuple[float, float]]:
        """By parameter the relative changes of the step time if it is halved and if it is doubled."""
        step = self.step_time
        return {name: (one.halved / step - 1.0, one.doubled / step - 1.0) for name, one in self.each.items()}


def summary(found: Found) -> dict[str, Any]:
    """Return the numbers that `sensitivity --json` prints."""
    each = found.each
    return {
        "name": found.sensitivities.base.scenario.name,
        "step_time_s": found.step_time,
        "elasticity": {name: one.elasticity for name, one in each.items()},
        "elasticity_if_lowered": {name: one.lowered for name, one in each.items()},
        "elasticity_if_raised": {name: one.raised for name, one in each.items()},
        "critical_path_elasticity": {name: one.critical for name, one in each.items() if one.critical is not None},
        "halved_s": {name: one.halved for name, one in each.items()},
        "doubled_s": {name: one.doubled for name, one in each.items()},
        "stragglers_s": {str(rank): seconds for rank, seconds in found.sensitivities.stragglers.items()},
        "changes": [{"set": dict(one.values), "step_time_s": one.step_time, "fits": one.fits} for one in found.changes],
        "uncertainty_s": percentiles(found.uncertainty) if found.uncertainty else None,
    }


def report(found: Found) -> str:
    """Return the text that `sensitivity` prints."""
    scenario = found.sensitivities.base.scenario
    parts = [
        f"{heading(scenario)}; {batch(scenario)}",
        f"step time {show(found.step_time, 'time')}",
        _table(found),
        _stragglers(found),
        "\n".join(_helps(found)),
        _uncertain(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(found: Found) -> str:
    moving = {name: one for name, one in found.each.items() if max(map(abs, found.relative[name])) >= LEAST}
    rows = []
    for name, one in moving.items():
        halved, doubled = found.relative[name]
        path = "" if one.critical is None else f"{one.critical:+.3f}"
        sides = [f"{one.lowered:+.3f}", f"{one.raised:+.3f}"]
        rows.append([name, f"{one.elasticity:+.3f}", *sides, path, f"{halved:+.1%}", f"{doubled:+.1%}"])
    header = ["parameter", "elasticity", "lowered", "raised", "critical path", "halved", "doubled"]
    lines = [indented(table(rows, header, "lr"))] if rows else []
    still = [name for name in found.each if name not in moving]
    if still:
        lines.append(f"  without influence: {', '.join(still)}")
    return "change of the step time with each parameter\n" + "\n".join(lines)


def _stragglers(found: Found) -> str:
    """Return what one slow GPU costs: all of it where others wait for it, little where its stage has time left."""
    costs = {rank: seconds / found.step_time - 1.0 for rank, seconds in found.sensitivities.stragglers.items()}
    if not costs:
        return ""
    told = [f"rank {rank} {cost:+.1%}" for rank, cost in costs.items()]
    return f"price of one GPU that computes {SLOWER - 1:.0%} slower, by the first rank of each stage: {', '.join(told)}"


def _helps(found: Found) -> Iterator[str]:
    """Yield what would shorten the step most: parameters of the machine, then changes of the configuration."""
    step = found.step_time
    gains = [one for one in largest(found.each, step) if one[2] >= LEAST * step][:MOST_GAINS]
    if gains:
        yield "what would help most"
        rows = [[f"{name} {what}", f"{gain / step:.1%} less"] for name, what, gain in gains]
        yield indented(table(rows, align="lr"))
    times = [(one.step_time, one) for one in found.changes if one.step_time is not None and one.need is not None]
    better = sorted((pair for pair in times if step - pair[0] >= LEAST * step), key=lambda pair: pair[0])
    for seconds, one in better:
        need = "" if one.fits or one.need is None else f"; needs {one.need.amount}: a GPU with more memory"
        yield f"  {one.text}: {show(seconds, 'time')}, {1 - seconds / step:.1%} less{need}"
    worse = [pair[1] for pair in times if pair not in better]
    if worse:
        yield f"  no gain: {', '.join(one.text for one in worse)}"


def _uncertain(found: Found) -> str:
    if not found.uncertainty:
        return ""
    shown = ", ".join(f"{name} {show(value, 'time')}" for name, value in percentiles(found.uncertainty).items())
    return f"by the uncertainty of the calibration, {len(found.uncertainty)} draws: {shown}"


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
