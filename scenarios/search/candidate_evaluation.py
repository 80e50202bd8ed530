"""Rules, bounds, estimate and simulation of candidates, as jobs of an executor; and the journal of a plan.

A process keeps the space and the prices of a scenario, so that candidates share them.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from clustersim.scenarios.alternatives.candidate import ORDER, Candidate, Rejected
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.run import running
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.least_memory import least_bytes
from clustersim.scenarios.search.lower_bounds import kernel_seconds, least_seconds, mean_kernel_seconds
from clustersim.scenarios.specification.plan import PlanSection
from clustersim.simulator.engine_choice import numba_fault
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError, ScenarioError, ScheduleError, SimulatorError
from clustersim.simulator.reading.files import UnreadableFile, read_text
from clustersim.simulator.reading.lookup import version
from clustersim.simulator.schedule.gc_paused import gc_paused

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds of a candidate: its memory, *nbytes*, and its step time, *seconds*; or why it is rejected."""

    nbytes: float = 0.0
    seconds: float = 0.0
    kind: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Priced:
    """The estimate of a candidate: *seconds* (None if memory does not suffice), *nbytes*; or why it is rejected."""

    seconds: float | None = None
    nbytes: float = 0.0
    kind: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Some candidates of the scenario in *source*, `packed`, by their *values*.

    *within*: bytes of a GPU. *level*: which of `LEVELS` is asked for.
    """

    source: bytes
    values: tuple[Values, ...]
    within: float = inf
    level: int = 0


def packed(scenario: Scenario) -> bytes:
    """Return *scenario* as bytes, equal for equal scenarios, for a `Task`."""
    return pickled({**scenario.source.data, "name": scenario.name})


def pickled(data: Mapping[str, Any]) -> bytes:
    """Return the *data* of a scenario as bytes."""
    return pickle.dumps(dict(data))


@lru_cache(maxsize=8)
def unpacked(source: bytes) -> Scenario:
    """Return the scenario of `packed` bytes."""
    return Scenario.model_validate(pickle.loads(source))


@lru_cache(maxsize=2)
def _space(source: bytes) -> tuple[Space, Estimator]:
    scenario = unpacked(source)
    return Space(scenario), Estimator(scenario)


LEVELS: tuple[Callable[[Estimator, BuiltScenario], float], ...] = (
    mean_kernel_seconds,
    kernel_seconds,
    least_seconds,
)
"""Lower bounds of the step time, each better than the one before it, and dearer."""


def bounds(task: Task) -> list[Bound]:
    """Return the lower bounds of each candidate of *task*: of its memory, and the first of `LEVELS` of its time."""
    with gc_paused():
        return [_bound(*_space(task.source), Candidate(values)) for values in task.values]


def _bound(space: Space, estimator: Estimator, candidate: Candidate) -> Bound:
    try:
        variant = space.variant(candidate)
        return Bound(least_bytes(estimator, variant), LEVELS[0](estimator, variant))
    except Rejected as rejected:
        return Bound(kind=rejected.kind, why=rejected.why)
    except (ClusterError, ScenarioError, ScheduleError) as error:
        return Bound(kind=ORDER, why=str(error).partition("\n")[0])


def times(task: Task) -> list[float]:
    """Return a lower bound of the step time of each candidate of *task*, that of its level.

    The candidates must obey the rules. The bound is infinite for one that cannot be priced.
    """
    space, estimator = _space(task.source)
    with gc_paused():
        return [_seconds(LEVELS[task.level], space, estimator, Candidate(values)) for values in task.values]


def _seconds(
    bound: Callable[[Estimator, BuiltScenario], float], space: Space, estimator: Estimator, candidate: Candidate
) -> float:
    try:
        return bound(estimator, space.variant(candidate))
    except (ClusterError, ScenarioError, ScheduleError):
        return inf


def estimates(task: Task) -> list[Priced]:
    """Return the estimate of each candidate of *task*, which must obey the rules."""
    space, estimator = _space(task.source)
    found = []
    with gc_paused():
        for values in task.values:
            variant = space.variant(Candidate(values))
            try:
                one = estimator.estimate(variant, task.within)
                found.append(Priced(one.seconds, one.need.nbytes))
            except (ScenarioError, ScheduleError) as error:
                found.append(Priced(kind=ORDER, why=str(error).partition("\n")[0]))
    return found


def simulations(task: Task) -> list[dict[str, Any]]:
    """Return the result of each candidate of *task*, simulated: its key figures, ``software`` and ``need_bytes``."""
    space, estimator = _space(task.source)
    with gc_paused():
        return [simulated(space.variant(Candidate(values)), estimator) for values in task.values]


def simulated(scenario: BuiltScenario, estimator: Estimator | None = None) -> dict[str, Any]:
    """Return the numbers of *scenario* that a plan keeps; the compiled engine has been loaded for its estimate.

    Model and network are those of *estimator*, if it is given.
    """
    network = None
    if estimator is not None:
        scenario.__dict__["model"] = estimator.model(scenario)
        network = estimator.network(scenario.derived).communicator
    simulation = scenario.specification.simulation
    if simulation.engine == "auto" and not numba_fault():
        compiled = simulation.model_copy(update={"engine": "compiled"})
        scenario = scenario.varied(scenario.specification.model_copy(update={"simulation": compiled}))
    told = running.run_step(scenario, network or running.communicator(scenario)).key_figures()
    memory = told["memory"]
    parts: Mapping[str, float] = told["breakdown_s"]
    exposed = sum(seconds for part, seconds in parts.items() if part.startswith("exposed_"))
    return {
        **told,
        "software": scenario.stack,
        "exposed_s": exposed,
        "need_bytes": memory["peak_bytes"] + memory["reserved_bytes"],
    }


def objective_fault(scenario: Scenario, plan: PlanSection) -> str:
    """Return why the objective of *plan* cannot be computed for *scenario*; empty if it can."""
    training, cost = scenario.specification.training, scenario.specification.cost
    if plan.objective in ("step_time", "memory") or training is None:
        return ""
    if not training.tokens and not training.samples:
        return f"{plan.objective} is of a whole training run: give training.tokens, or samples"
    if plan.objective == "energy":
        powers = [gpu.power for gpu in scenario.cluster().count(scenario.derived.devices)]
        known = (cost is not None and cost.gpu_power) or all(powers)
        return "" if known else "energy needs the power of a GPU: give cost.gpu_power, e.g. 700 W"
    if cost is None or not cost.gpu_hour:
        return f"{plan.objective} needs a price: give cost.gpu_hour"
    if plan.objective == "tokens_per_currency" and not training.tokens:
        return "tokens_per_currency counts tokens: give training.tokens"
    return ""


def value(objective: str, result: Mapping[str, Any], tokens: float = 0.0) -> float:
    """Return what *objective* makes least of a simulated *result*.

    >>> value("tokens_per_currency", {"training": {"cost": 2.0}}, 8.0)
    -4.0
    """
    match objective:
        case "memory":
            return float(result["need_bytes"])
        case "cost":
            return float(result["training"]["cost"])
        case "energy":
            return float(result["training"]["energy_mwh"])
        case "tokens_per_currency":
            return -tokens / float(result["training"]["cost"])
    return float(result["step_time_s"])


def chunks(values: Sequence[Values], size: int) -> list[tuple[Values, ...]]:
    """Return *values* in runs of *size*."""
    return [tuple(values[begin : begin + size]) for begin in range(0, len(values), size)]


NAME = "journal.jsonl"

MOST_BYTES = 2**30
"""A journal of 100,000 candidates has some 50 MB."""


class Journal:
    """The journal in *folder*, of the plan with that *source* (`judging.packed`); None: in memory alone.

    The first line names version and plan. Raises `ScenarioError` if the folder has the journal of another plan.
    """

    def __init__(self, folder: Path | None, source: bytes) -> None:
        self.path = folder / NAME if folder else None
        self.estimated: dict[str, Priced] = {}
        self.simulated: dict[str, dict[str, Any]] = {}
        head = {"clustersim": version(), "plan": hashlib.sha256(source).hexdigest()}
        if self.path is None:
            return
        if self.path.exists():
            self._read(self.path, head)
        else:
            self._append(head)

    def estimate(self, candidate: Candidate, priced: Priced) -> None:
        """Keep the estimate of *candidate*."""
        self.estimated[candidate.key] = priced
        self._append({"estimate": candidate.values, **asdict(priced)})

    def simulation(self, candidate: Candidate, result: Mapping[str, Any]) -> None:
        """Keep the simulated *result* of *candidate*."""
        self.simulated[candidate.key] = dict(result)
        self._append({"simulation": candidate.values, "result": result})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SimulatorError(f"cannot write {self.path}: {error.strerror or error}") from None

    def _read(self, path: Path, head: Mapping[str, str]) -> None:
        try:
            lines = read_text(path, MOST_BYTES).splitlines()
        except UnreadableFile as error:
            raise ScenarioError(str(error)) from None
        found = [_line(text) for text in lines]
        if not found or found[0] != head:
            raise ScenarioError(
                f"{path}: the journal of another plan, or of another version of clustersim; give another folder"
            )
        for line in found[1:]:
            # a last line that was cut off by an interrupt is None
            if line and "estimate" in line:
                fields = {key: line[key] for key in ("seconds", "nbytes", "kind", "why")}
                self.estimated[Candidate(line["estimate"]).key] = Priced(**fields)
            elif line and "simulation" in line:
                self.simulated[Candidate(line["simulation"]).key] = line["result"]
        if lines and found[-1] is None:
            # what follows begins on a line of its own
            self._append_newline(path)

    def _append_newline(self, path: Path) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")


def _line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
