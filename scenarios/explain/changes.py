"""Changes that would shorten a real step, each with its gain by simulation.

The causes of the gap are put into the scenario: a late rank, slower kernels, a slow host, slower links, other buckets,
no overlap. The result is the scenario *as measured*. A change takes one of them out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from clustersim.scenarios.alternatives.changes import Change, of_configuration, with_needs
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.explain.gap import Cause, Gap
from clustersim.scenarios.search.varied_machine import VariedMachine, machine
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Compute

MOST = 3
"""Changes that are told."""

LEAST_GAIN = 0.005
"""Share of the step time from which a gain is told."""

LEAST_CAUSE = 0.01
"""Share of the simulated step from which a cause is put into the scenario."""

HOST_REMEDY = "the host ahead of the GPU (torch.compile, CUDA graphs, a larger micro-batch)"


class ProgramFault(NamedTuple):
    """Causes of one *kind* in a scenario; *remedy*: what takes them away.

    *values* by dotted key; *slower*: seconds of a step by which computation on a rank is longer; *bandwidth*: factor on
    the bandwidth of all links.
    """

    kind: str
    remedy: str
    values: Mapping[str, Any] = {}
    slower: Mapping[int, float] = {}
    bandwidth: float = 1.0


@dataclass(frozen=True)
class Suggestions:
    """The step time *as_measured*, simulated with the causes of the gap (s), and the *changes* with the largest gains.

    *beyond*: causes that the scenario cannot express, in words.
    """

    as_measured: float
    changes: tuple[Change, ...]
    beyond: tuple[str, ...]


def suggestions(scenario: BuiltScenario, timeline: Timeline, found: Gap) -> Suggestions:
    """Return the best changes for the run whose gap to *timeline*, of *scenario*, is *found*."""
    large = [cause for cause in found.causes if abs(cause.seconds) > LEAST_CAUSE * found.simulated]
    faults = [fault for fault in _faults(large, timeline.gpu_ranks) if _possible(scenario, fault)]
    expressed = {fault.kind for fault in faults}
    beyond = tuple(cause.text for cause in large if cause.kind not in expressed and cause.seconds > 0)
    measured = _step_time(scenario, timeline, faults)
    tried = [
        (_step_time(scenario, timeline, [one for one in faults if one is not fault]), Change(words=fault.remedy))
        for fault in faults
    ]
    better = [pair for pair in tried if measured - pair[0] > LEAST_GAIN * measured]
    if len(better) < MOST:
        of_keys = _of_keys(scenario, timeline, faults)
        better += [pair for pair in of_keys if measured - pair[0] > LEAST_GAIN * measured]
    best = sorted(better, key=lambda pair: pair[0])[:MOST]
    return Suggestions(measured, tuple(replace(one, step_time=seconds) for seconds, one in best), beyond)


def _faults(causes: Sequence[Cause], ranks: Sequence[int]) -> Iterator[ProgramFault]:
    """Yield *causes* as changes of a scenario on *ranks*, one for each kind that a scenario can express."""
    by_kind: dict[str, list[Cause]] = {}
    for cause in causes:
        by_kind.setdefault(cause.kind, []).append(cause)
    for kind, several in by_kind.items():
        seconds, first = sum(cause.seconds for cause in several), several[0]
        everywhere = dict.fromkeys(ranks, seconds)
        if kind == "late_rank":
            yield ProgramFault(
                kind, f"rank {first.subject} as fast as the others", slower={int(first.subject): seconds}
            )
        elif kind == "kernels":
            yield ProgramFault(kind, "kernels as fast as priced", slower=everywhere)
        elif kind == "launch_bound":
            yield ProgramFault(kind, HOST_REMEDY, slower=everywhere)
        elif kind == "missing_overlap":
            yield ProgramFault(
                kind, f"{first.subject} overlapped with computation", {"parallelism.data.overlap": False}
            )
        elif kind == "other_sizes":
            real, simulated = (show(nbytes, "size", 4) for nbytes in (first.measured, first.simulated))
            yield ProgramFault(kind, f"buckets of {simulated} in place of {real}", {"parallelism.data.bucket": real})
        elif kind == "slow_collectives" and all(cause.measured > 0 for cause in several):
            factor = sum(cause.simulated for cause in several) / sum(cause.measured for cause in several)
            names = " and ".join(cause.subject for cause in several)
            yield ProgramFault(kind, f"{names} as fast as simulated", bandwidth=factor)


def _possible(scenario: BuiltScenario, fault: ProgramFault) -> bool:
    """True if *scenario* can be built with *fault*."""
    try:
        scenario.changed(fault.values, fault.remedy)
    except SimulatorError:
        return False
    return fault.bandwidth > 0


def _as_measured(scenario: BuiltScenario, faults: Sequence[ProgramFault]) -> BuiltScenario:
    values = {key: value for fault in faults for key, value in fault.values.items()}
    return scenario.changed(values, "the run as measured")


def _step_time(scenario: BuiltScenario, timeline: Timeline, faults: Sequence[ProgramFault]) -> float:
    """Return the simulated step time of *scenario* with *faults*, s."""
    return _machine(_as_measured(scenario, faults), timeline, faults).step_time()


def _machine(scenario: BuiltScenario, timeline: Timeline, faults: Sequence[ProgramFault]) -> VariedMachine:
    base = machine(scenario)
    slow = dict(base.variation.stragglers)
    for rank in timeline.gpu_ranks:
        seconds = sum(fault.slower.get(rank, 0.0) for fault in faults)
        if seconds:
            slow[rank] = slow.get(rank, 1.0) * max(1.0 + seconds / computing(timeline, rank), 0.0)
    for fault in faults:
        if fault.bandwidth != 1.0:
            factor = fault.bandwidth
            links = base.cluster.map_links(lambda link, f=factor: replace(link, bandwidth=link.bandwidth * f))  # type: ignore[misc]
            base = replace(base, cluster=links)
    return replace(base, variation=replace(base.variation, stragglers=slow))


def computing(timeline: Timeline, rank: int) -> float:
    """Return the seconds of a step in which the ops of *rank* compute, each for itself."""
    program, own = timeline.schedule.program(rank), timeline.of(rank)
    computes = program.column(lambda op: isinstance(op, Compute), bool)[own.op]
    return max(float((own.end - own.begin)[computes].sum()) / timeline.steps_run, 1e-12)


def _of_keys(
    scenario: BuiltScenario, timeline: Timeline, faults: Sequence[ProgramFault]
) -> Iterator[tuple[float, Change]]:
    """Yield changes of the configuration of the scenario as measured, each with its step time (s)."""
    measured = _as_measured(scenario, faults)
    for change in with_needs(measured, of_configuration(measured)):
        if change.fits:
            yield _machine(change.of(measured), timeline, faults).step_time(), change
