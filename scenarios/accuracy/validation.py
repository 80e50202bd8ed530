"""Validation replays a scenario on real processes and compares the simulation with it: report and files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.build.derived import at_clock_of_longest_stage, at_slowest_clock
from clustersim.scenarios.run.running import communicator, simulated, variation
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts import text_report
from clustersim.simulator.engine.pricing import durations
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ReplayError, ScenarioError
from clustersim.simulator.reading.files import file_stems, write_text
from clustersim.simulator.reading.plain_text import indented
from clustersim.simulator.reading.units import show
from clustersim.simulator.replay import comparison
from clustersim.simulator.replay.launch import TIMEOUT, under_torchrun
from clustersim.simulator.replay.rendezvous import available_bytes, fitting_scale
from clustersim.simulator.replay.replay import BrokenReplayError, Replay, replay, scaled
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.traces import span_table
from clustersim.workloads.operators.operator import REPLICAS

if TYPE_CHECKING:
    from clustersim.simulator.replay.testbed import Testbed
    from clustersim.simulator.simulate import SimulationRun

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
    watch: Callable[[SimulationRun], Any] | None = None,
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
    cluster = at_clock_of_longest_stage(
        schedule, at_slowest_clock(scenario.cluster(), devices), devices, scenario.software
    )
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


def validation_report(validation: Validation) -> str:
    """Return the whole report."""
    sections = [
        _heading(validation),
        _table(validation),
        "where the step time went\n" + indented(text_report.comparison(validation.breakdowns)),
        "\n".join(_notes(validation)),
    ]
    return "\n\n".join(sections)


def _heading(validation: Validation) -> str:
    options, ranks = validation.options, validation.simulated.world_size
    often = "one repetition" if options.repeat == 1 else f"the median of {options.repeat} repetitions"
    how = {"sleep": "sleeping", "spin": "spinning", "kernels": "executing the kernels"}[options.compute]
    return (
        f"{validation.scenario.name}: {ranks} ranks with {options.backend}, computing by {how}; {often} after a warm-up"
    )


def _table(validation: Validation) -> str:
    times = validation.simulated.step_time, validation.measured.step_time
    rows = [["step", "", "", *(show(time, "time") for time in times), _percent(validation.relative_error)]]
    rows += [
        [
            row.what,
            f"{row.count:,}",
            show(row.nbytes, "size", 3) if row.nbytes else "",
            show(row.simulated, "time", 3),
            show(row.measured, "time", 3),
            _percent(row.error),
        ]
        for row in validation.kinds
    ]
    return plain_text.table(rows, ["", "number", "each", "simulated", "measured", "error"], "lr")


def _percent(error: float) -> str:
    return "" if isnan(error) else f"{error:+.1%}"


def _notes(validation: Validation) -> Iterator[str]:
    """The repetitions, the order of ops, and caveats."""
    times = ", ".join(show(time, "time") for time in validation.replay.step_times)
    yield f"step time of each repetition: {times}"
    yield from _order(validation)
    if validation.scale != 1:
        yield f"note: all that is communicated was scaled by {validation.scale:g}, in the simulation too"
    transport, backend = validation.scenario.specification.network.transport, validation.options.backend
    if transport in ("nccl", "gloo", "ideal") and transport != backend:
        yield f"note: simulated with transport {transport}, replayed with {backend}: --set network.transport={backend}"
    if _latency(validation.scenario.cluster()) and not _latency(validation.simulated.cluster):
        yield "note: this kernel cannot delay frames (it has no netem); links have no latency, also in the simulation"
    ranks, there = validation.simulated.world_size, cores()
    if backend == "gloo" and ranks > there:
        yield f"note: {ranks} ranks share {there} cores to send and to add, which the simulation does not model"


def _latency(cluster: Cluster | None) -> bool:
    """Whether any link has a latency."""
    return cluster is not None and any(link.latency for link in cluster.links)


def _order(validation: Validation) -> Iterator[str]:
    ranks, swaps = validation.simulated.world_size, validation.swaps
    if not validation.same_order:
        yield "order of ops: NOT as simulated"
        return
    yield f"order of ops: as simulated on every stream of all {ranks} ranks"
    if swaps:
        widest = max(swaps, key=lambda swap: swap.seconds)
        yield (
            f"  streams overtook each other on {len(swaps)} of them; farthest on rank {widest.rank}: {widest.first},"
            f" to end {show(widest.seconds, 'time', 3)} before {widest.second} began, began after its end"
        )


def write(validation: Validation, folder: Path, variant_of: str = "") -> Iterator[Path]:
    """Write *validation* into *folder* and yield the paths. The files of a variant end with its name."""
    from clustersim.simulator.charts.figures import draw_beside

    name = validation.scenario.name
    ending, title = (f"_{file_stems([name])[name]}", f"{variant_of}: {name}") if variant_of else ("", name)
    path = folder / f"validation{ending}.json"
    write_text(path, json.dumps(validation.summary(), indent=2) + "\n")
    yield path
    path = folder / f"measured_spans{ending}.csv"
    span_table.write(validation.measured, path)
    yield path
    path = folder / f"validation{ending}.png"
    times = ", ".join(f"{what} {show(line.step_time, 'time')}" for what, line in validation.timelines.items())
    draw_beside(validation.timelines, path, title=f"{title}: step {times}")
    yield path


def with_spans_kept(error: BrokenReplayError, folder: Path) -> ReplayError:
    """Write the spans of the finished repetitions of *error* into *folder*; return an error that names the files."""
    if not error.timelines:
        return error
    for number, timeline in enumerate(error.timelines):
        span_table.write(timeline, folder / f"measured_spans_{number}.csv")
    count = len(error.timelines)
    what = "the warm-up" if count == 1 else f"the warm-up and {count - 1} repetitions"
    return ReplayError(f"{error}; {what} had been measured: {folder}/measured_spans_*.csv")
