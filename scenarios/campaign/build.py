"""The job of a scenario's campaign: stages from simulated steps, checkpoints from the memory account, failures.

Failures are drawn, or read from a trace in a CSV file.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isfinite
from statistics import fmean

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.input_pipeline import loading
from clustersim.scenarios.campaign import job as closed_forms
from clustersim.scenarios.campaign.job import Breakdowns, Checkpoints, TrainingRun, TrainingStage
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.specification.campaign import Campaign, CheckpointPolicy, Failures
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Path
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import read_rows
from clustersim.simulator.reading.units import show_long
from clustersim.workloads.memory.optimizer import resident_states

COLUMN = "hours"


def failure_times(path: str) -> tuple[float, ...]:
    """Return the times of the file at *path* in s, ascending; none for an empty path.

    Raises `ScenarioError`, with the line, for a time that is no number above the one before.
    """
    if not path:
        return ()
    rows = list(read_rows(path))
    header = rows[0].cells if rows else []
    if COLUMN not in header:
        raise ScenarioError(f'{path}: needs a column "{COLUMN}": times of failures since the begin')
    place, found = header.index(COLUMN), [0.0]
    for row in rows[1:]:
        text = row.cells[place] if place < len(row.cells) else ""
        try:
            hours = float(text)
        except ValueError:
            hours = -1.0
        if not isfinite(hours) or hours * 3600.0 <= found[-1]:
            raise ScenarioError(f"{path}:{row.line}: {COLUMN} must be numbers above 0 that ascend, not {text}")
        found.append(hours * 3600.0)
    return tuple(found[1:])


SLOWEST = 1000.0
"""Expected time over the time without failures above which a campaign is refused: it would hardly ever end."""

MOST_EVENTS = 5e6
"""Checkpoints and failures of one sample at most: some ten seconds."""

AT = ("campaign",)


@dataclass(frozen=True)
class BuiltPhase:
    """A simulated step of a phase, with the tokens (or samples) of the phase; None: all that are left."""

    result: StepNumbers
    amount: float | None = None

    @property
    def simulated(self) -> float:
        """Mean step time of the repeats, s."""
        return fmean(self.result.step_times or (self.result.timeline.step_time,))

    @property
    def step_time(self) -> float:
        """Mean time from step to step, s, with the wait for data."""
        loading = self.result.loading
        return self.simulated + (loading.wait(self.simulated) if loading else 0.0)

    @property
    def each(self) -> float:
        """Tokens of a step; samples for a model without tokens."""
        scenario = self.result.scenario
        assert scenario.model is not None
        assert scenario.specification.training is not None
        return scenario.specification.training.global_batch_size * (scenario.model.tokens_per_sample or 1)


def section(scenario: BuiltScenario) -> Campaign:
    """Return the campaign section of *scenario*. Raises `ScenarioError` if it has none."""
    if scenario.specification.campaign is None:
        raise scenario.document.error(AT, "is missing; a campaign needs at least campaign: {tokens: 300e9}")
    return scenario.specification.campaign


def amount(scenario: BuiltScenario) -> float:
    """Return the tokens of the campaign; samples for a model without tokens."""
    training, model = scenario.specification.training, scenario.model
    assert training is not None
    assert model is not None
    samples = None if training.samples is None else training.samples * (model.tokens_per_sample or 1)
    found = section(scenario).tokens or training.tokens or samples
    if not found:
        raise scenario.document.error((*AT, "tokens"), "is required (or training.tokens, or training.samples)")
    return found


def stages(scenario: BuiltScenario, phases: Sequence[BuiltPhase]) -> tuple[TrainingStage, ...]:
    """Return the stages of *phases*, of which the last takes what is left. Raises `ScenarioError` if nothing is."""
    left, found = amount(scenario), []
    for place, phase in enumerate(phases):
        here = left if phase.amount is None else phase.amount
        if here > left or (phase.amount is None and not left > 0):
            last = max(0, min(place, len(phases) - 2))
            raise scenario.document.error(
                (*AT, "schedule", last, "tokens"), f"no tokens are left after this of {amount(scenario):g} in all"
            )
        found.append(TrainingStage(max(1, ceil(here / phase.each - 1e-9)), phase.step_time, phase.each))
        left -= here
    return tuple(found)


def checkpoint_bytes(scenario: BuiltScenario) -> float:
    """Return the bytes of a checkpoint: trained parameters and optimizer states, each once."""
    training, model = scenario.specification.training, scenario.model
    assert training is not None
    assert model is not None
    trained = [tensor for layer in model.layers for tensor in layer.tensors if tensor.trainable]
    held = resident_states(trained, training.updated_by(scenario.software), model.precision)
    return held["parameters"] + held["optimizer"]


@dataclass(frozen=True)
class Writing:
    """Bytes of a checkpoint, and the seconds that training stops for it, to write it and to load it."""

    size: float
    copy: float
    write: float
    load: float


def writing(scenario: BuiltScenario, step: float = 0.0) -> Writing | None:
    """Return the times of a checkpoint of *scenario*; None if it writes none.

    *step*: the step time, s, beside which samples are read from the same storage; 0 if that is not known.
    """
    policy = section(scenario).checkpoint
    if policy is None:
        return None
    size = policy.size or checkpoint_bytes(scenario)
    write = policy.write
    if write is None:
        assert policy.storage is not None
        write = size / policy.storage.aggregate
    load = write if policy.load is None else policy.load
    if not policy.asynchronous:
        return Writing(size, write, write, load)
    copy, lost, reading = min(write, _host_copy(scenario, size)), 0.0, loading(scenario)
    if reading is not None and reading.shared and step and policy.write is None:
        write, lost = reading.writing(size, step)
    return Writing(size, copy + lost, write + lost, load)


def _host_copy(scenario: BuiltScenario, size: float) -> float:
    """Return the seconds in which all GPUs copy their equal shares of *size* bytes to their hosts."""
    cluster, gpus = scenario.cluster(), scenario.derived.devices[: scenario.derived.ranks]
    if not cluster.hosts:
        raise scenario.document.error(
            (*AT, "checkpoint", "asynchronous"), "needs hosts to copy to, and this cluster has none"
        )
    route = cluster.route(gpus[0], cluster.host_of(gpus[0]))
    return size / len(gpus) / min(cluster.links[link].bandwidth for link in route)


def check(scenario: BuiltScenario) -> None:
    """Check what the campaign of *scenario* needs, without a simulation. Raises `ScenarioError` for each fault."""
    given = scenario.specification.campaign
    if given is None:
        return
    amount(scenario)
    times = writing(scenario)
    failures = breakdowns(scenario, 0.0)
    if given.checkpoint is not None and times is not None:
        _interval(scenario, given.checkpoint, times, failures.mtbf if failures else inf)


def nodes(scenario: BuiltScenario) -> int:
    """Return the number of nodes of the job."""
    cluster = scenario.cluster()
    return len({cluster.node_of(device) for device in scenario.derived.devices})


def _has_nodes(scenario: BuiltScenario) -> bool:
    return scenario.document.get(("cluster", "nodes")) is not None or nodes(scenario) > 1


def breakdowns(scenario: BuiltScenario, load: float) -> Breakdowns | None:
    """Return the failures of *scenario*, to which loading a checkpoint adds *load* seconds; None without failures."""
    given = section(scenario).failures
    if given is None:
        return None
    at: Path = (*AT, "failures")
    for key in ("mtbf_per_node", "spares"):
        if getattr(given, key) is not None and not _has_nodes(scenario):
            raise scenario.document.error(
                (*at, key), "this cluster is not made of nodes; give mtbf_per_gpu, and leave out spares"
            )
    if given.elastic and scenario.derived.replicas == 1:
        raise scenario.document.error((*at, "elastic"), "needs several replicas to train with fewer; dp is 1")
    return Breakdowns(
        mtbf(scenario, given),
        failure_times(given.trace),
        given.detect,
        given.replace,
        given.restart + load,
        given.spares,
        given.repair or 0.0,
        given.broken,
        given.elastic,
        inf if given.lost_work is None else given.lost_work,
    )


def mtbf(scenario: BuiltScenario, given: Failures) -> float:
    """Return the mean time between failures of the whole job, s; infinite for a trace."""
    if given.mtbf_per_gpu:
        return given.mtbf_per_gpu / scenario.derived.ranks
    return given.mtbf_per_node / nodes(scenario) if given.mtbf_per_node else inf


def job(scenario: BuiltScenario, phases: Sequence[BuiltPhase]) -> TrainingRun:
    """Return the job of the campaign of *scenario*, whose steps are those of *phases*.

    Raises `ScenarioError` where it could not be simulated or would hardly ever end.
    """
    found, times = stages(scenario, phases), writing(scenario, phases[-1].simulated)
    failures = breakdowns(scenario, times.load if times else 0.0)
    policy, maintenance = section(scenario).checkpoint, section(scenario).maintenance
    checkpoints = None
    if policy is not None and times is not None:
        seconds = _interval(scenario, policy, times, failures.mtbf if failures else inf)
        checkpoints = Checkpoints(seconds, times.copy, times.write)
    made = TrainingRun(
        found,
        nodes(scenario),
        scenario.derived.replicas,
        checkpoints,
        failures,
        (maintenance.every, maintenance.duration) if maintenance else None,
    )
    _check_ends(scenario, made)
    return made


def _interval(scenario: BuiltScenario, policy: CheckpointPolicy, times: Writing, mean: float) -> float:
    """Return the seconds of training between checkpoints."""
    if isinstance(policy.every, float):
        if times.write > policy.every:
            raise scenario.document.error(
                (*AT, "checkpoint", "every"),
                f"a checkpoint takes {show_long(times.write)} to write, longer than the {show_long(policy.every)} "
                "between two; give a longer time, or more storage bandwidth",
            )
        return policy.every
    if not times.copy:
        raise scenario.document.error(
            (*AT, "checkpoint", "every"), f"{policy.every} needs checkpoints that take time; give a time, e.g. 1 h"
        )
    return max(closed_forms.ESTIMATES[policy.every](times.copy, mean), times.write)


def _check_ends(scenario: BuiltScenario, made: TrainingRun) -> None:
    """Raise `ScenarioError` for a campaign of `SLOWEST` times its time without failures, or of `MOST_EVENTS`."""
    tau, mean = made.interval, made.failures.mtbf if made.failures else inf
    factor = closed_forms.cost(tau, made.checkpoints.stall if made.checkpoints else 0.0, made.mean_restart, mean)
    between = f"a failure comes every {show_long(mean)}, and {show_long(tau)} of training must go without one"
    if factor > SLOWEST:
        raise scenario.document.error(
            (*AT, "failures"), f"the campaign would hardly ever end: {between}; write checkpoints more often"
        )
    events = made.productive / tau + (made.productive * factor / mean if isfinite(mean) else 0.0)
    if events > MOST_EVENTS:
        raise scenario.document.error(
            AT, f"{events:.2g} checkpoints and failures are too many to simulate; the most is {MOST_EVENTS:.0e}"
        )
