"""Elasticities: the relative change of the step time over that of a parameter, by simulation and by the critical path.

An elasticity e predicts T(f p) = T(p) f^e. By simulation it is a central difference over changes of 10 %, and one for
each side, since a bottleneck ends where the next one begins. By the critical path it is the share of the path's
computation that scales with the parameter, which is exact while the path and the rates of transfers stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from scenarios.running import Watch
from scenarios.sensitivity.machine import Machine, Scale, parameters
from simulator.analysis.critical.path import CriticalPath, critical_path
from simulator.engine.pricing import Pricing
from simulator.timeline import Timeline

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

    base: Machine
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

    def _slowed(self, rank: int) -> Machine:
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

    def _seconds(self, changed: Machine, path: CriticalPath) -> float:
        """Return the seconds of the computations on *path* if *changed* priced them."""
        before, after = self._price(self.base), self._price(changed)
        total, seconds = 0.0, path.per_step()
        for rank in np.unique(path.rank).tolist():
            mine = path.rank == rank
            where = path.step[mine], path.op[mine]
            old, new = before(rank)[where], after(rank)[where]
            total += float((seconds[mine] * np.divide(new, old, out=np.zeros_like(new), where=old > 0)).sum())
        return total

    def _price(self, priced: Machine) -> Callable[[int], np.ndarray]:
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
