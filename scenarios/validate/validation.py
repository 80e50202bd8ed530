"""Validation replays a scenario on real processes and compares the simulation with the measurement."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scenarios.build.clocks import at_slowest_clock
from scenarios.running import communicator, simulated, variation
from scenarios.scenario import Scenario
from simulator.analysis import metrics
from simulator.errors import ScenarioError
from simulator.replay import comparison
from simulator.replay.durations import durations
from simulator.replay.launch import TIMEOUT, under_torchrun
from simulator.replay.memory import available_bytes, fitting_scale
from simulator.replay.replay import Replay, replay, scaled
from simulator.schedule import Schedule
from simulator.timeline import Timeline
from workloads.operators.parameter import REPLICAS

if TYPE_CHECKING:
    from simulator.engine.simulate import Simulation
    from simulator.replay.testbed.testbed import Testbed

MOST_RANKS = 64
"""Ranks started on one machine. Each is connected to all others in each of its groups."""


@dataclass(frozen=True)
class ReplayOptions:
    """The library, the way to compute, the number of repetitions after a warm-up, and the limit in seconds.

    *scale*: the factor on all communicated bytes. None: 1, or what memory allows.
    """

    backend: str = "gloo"
    compute: str = "sleep"
    repeat: int = 3
    scale: float | None = None
    timeout: float = TIMEOUT


@dataclass(frozen=True)
class Validation:
    """*scenario* as *simulated* and as measured by a *replay*, with *scale* on all communicated bytes."""

    scenario: Scenario
    options: ReplayOptions
    scale: float
    simulated: Timeline
    replay: Replay

    @cached_property
    def measured(self) -> Timeline:
        """The repetition of median step time."""
        return self.replay.median

    @property
    def relative_error(self) -> float:
        """The share by which the simulated step is longer than the measured one."""
        return comparison.relative_error(self.simulated.step_time, self.measured.step_time)

    @cached_property
    def kinds(self) -> list[comparison.KindRow]:
        """A row for each kind of work."""
        return comparison.by_kind(self.simulated, self.measured)

    @cached_property
    def swaps(self) -> list[comparison.Swap]:
        """Where streams overtook each other."""
        return comparison.swaps(self.simulated, self.measured)

    @cached_property
    def same_order(self) -> bool:
        """Whether every stream executed its ops in the simulated order."""
        return comparison.same_order(self.simulated, self.measured)

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """Both timelines, by name."""
        return {"simulated": self.simulated, "measured": self.measured}

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, float]]:
        """The breakdown of the step time, in both."""
        return {name: metrics.breakdown(timeline) for name, timeline in self.timelines.items()}

    def summary(self) -> dict[str, Any]:
        """Return the numbers, as `validate --json` prints them."""
        return {
            "name": self.scenario.name,
            "simulated_step_time_s": self.simulated.step_time,
            "measured_step_time_s": self.measured.step_time,
            "relative_error": self.relative_error,
            "repeats_s": self.replay.step_times,
            "backend": self.options.backend,
            "compute": self.options.compute,
            "ranks": self.simulated.world_size,
            "scale": self.scale,
            "same_order": self.same_order,
            "swaps": [{"rank": s.rank, "first": s.first, "second": s.second, "apart_s": s.seconds} for s in self.swaps],
            "kinds": [
                {
                    "what": row.what,
                    "count": row.count,
                    "bytes": row.nbytes,
                    "simulated_s": row.simulated,
                    "measured_s": row.measured,
                }
                for row in self.kinds
            ],
            "breakdown_s": self.breakdowns,
            "ops": [
                {"rank": one.rank, "op": one.op, "simulated_s": one.simulated, "measured_s": one.measured}
                for one in comparison.op_times(self.simulated, self.measured)
            ],
        }


def validate(
    scenario: Scenario,
    options: ReplayOptions,
    testbed: Testbed | None = None,
    watch: Callable[[Simulation], Any] | None = None,
) -> Validation | None:
    """Simulate and replay *scenario*, which has no variants, on a *testbed* or on the loopback interface.

    Under torchrun rank 0 gets the validation, the others None. Raises `BrokenReplayError` with the finished
    repetitions.
    """
    schedule = scenario.schedule()
    ranks = schedule.mesh.world_size
    if ranks > MOST_RANKS and not under_torchrun():
        raise ScenarioError(
            f"{scenario.name}: {ranks} ranks exceed the {MOST_RANKS} of one machine; use --ranks, or torchrun"
        )
    scale = options.scale or fitting_scale(schedule, available_bytes())
    schedule = scaled(schedule, scale) if scale != 1 else schedule
    timeline = simulated(scenario, schedule, watch, communicator(scenario, testbed.cluster if testbed else None))
    replayed = replay(
        schedule,
        modelled(scenario, schedule),
        backend=options.backend,
        compute=options.compute,
        repeat=options.repeat,
        places=testbed.places if testbed else None,
        timeout=options.timeout,
    )
    return Validation(scenario, options, scale, timeline, replayed) if replayed is not None else None


def modelled(scenario: Scenario, schedule: Schedule) -> list[list[float]]:
    """Return the modelled seconds of the ops of each rank of *schedule* on the cluster of *scenario*."""
    devices = scenario.derived.devices
    cluster = at_slowest_clock(scenario.cluster(), devices)
    return durations(schedule, cluster, devices, scenario.software, variation(scenario))


def resized(scenario: Scenario, ranks: int) -> Scenario:
    """Return *scenario* on *ranks* ranks, hosts included: fewer or more replicas, each with the same work.

    Raises `ScenarioError` if the number of replicas would not be whole.
    """
    derived, specification = scenario.derived, scenario.specification
    if specification.collective is not None:
        return scenario.changed({"collective.ranks": ranks}, f"--ranks {ranks}")
    if derived.by_stage:
        raise ScenarioError(f"--ranks {ranks}: pipeline ranks with unequal replicas cannot be resized; change dp")
    servers, each = len(derived.devices) - derived.ranks, derived.ranks // derived.replicas
    replicas, rest = divmod(ranks - servers, each)
    if rest or replicas < 1:
        within = " x ".join(f"{axis} {degree}" for axis, degree in derived.degrees.items() if axis != REPLICAS)
        beside = f", plus {servers} for parameter servers" if servers else ""
        raise ScenarioError(f"--ranks {ranks}: must be a multiple of {within} = {each}{beside}")
    batch = derived.micro_batch_size * derived.micro_batches * replicas
    return scenario.changed({"parallelism.dp": replicas, "training.global_batch_size": batch}, f"--ranks {ranks}")


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
