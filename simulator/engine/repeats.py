"""Step times of a simulation under several seeds.

Classes, matching, plans and all lowered arrays except durations are made once. The compiled loop releases Python's
global lock, so the runs are threads on all processors and share these arrays.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from clustersim.simulator.engine.interface.outcome import deadlock
from clustersim.simulator.engine.simulate import Simulation
from clustersim.simulator.schedule.gc_paused import gc_paused

if TYPE_CHECKING:
    from clustersim.simulator.engine.compiled.lowering import Lowering

MOST_BYTES = 2**32
"""The most memory for the durations of concurrent runs; a run of 12,288 ranks needs 0.5 GB."""


def step_times(simulation: Simulation, seeds: Sequence[int]) -> list[float]:
    """The step time (s) of *simulation* under each of *seeds*. Raises `DeadlockError`."""
    if not seeds:
        return []
    if simulation.chosen_engine != "compiled" or simulation.schedule.measured_by_span:
        return [simulation.with_seed(seed).run().step_time for seed in seeds]
    with gc_paused():
        return _Repeats(simulation, seeds).run()


class _Repeats:
    """Runs of *simulation* on the compiled engine, one for each of *seeds*."""

    def __init__(self, simulation: Simulation, seeds: Sequence[int]) -> None:
        from clustersim.simulator.engine.compiled.lowering import lower

        self.simulation, self.seeds = simulation, seeds
        first = simulation.with_seed(seeds[0])
        self.lowering = lower(first.setup, kept=(), totals=False, record=False)
        self.fractions = dict.fromkeys(seeds, 0.0)
        self.stopped = Event()

    def run(self) -> list[float]:
        """The step times, in the order of the seeds."""
        at_a_time = min(len(self.seeds), processors(), MOST_BYTES // max(1, self.lowering.arrays.durations.nbytes))
        with ThreadPoolExecutor(max(1, at_a_time)) as pool:
            try:
                return list(pool.map(self._step_time, self.seeds))
            except BaseException:
                # such as an interrupt: the other runs end when they next report their progress
                self.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _step_time(self, seed: int) -> float:
        from clustersim.simulator.engine.compiled.execution import Execution

        def watch(fraction: float) -> None:
            if self.stopped.is_set():
                raise InterruptedError
            self.fractions[seed] = fraction
            self.simulation.fraction = sum(self.fractions.values()) / len(self.fractions)

        execution = Execution(self._lowered(seed), watch)
        outcome = execution.run()
        schedule = self.simulation.schedule
        error = deadlock(schedule, self.simulation.classes.representative, outcome.waiting)
        if error is not None:
            raise error
        watch(1.0)
        begin, _ = execution.first_step
        return (float(execution.state.clock[0]) - begin) / (schedule.batches * max(1, schedule.steps - 1))

    def _lowered(self, seed: int) -> Lowering:
        if seed == self.seeds[0]:
            return self.lowering
        variation = replace(self.simulation.variation, seed=seed)
        return self.lowering.with_pricing(self.lowering.setup.pricing.with_variation(variation))


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
