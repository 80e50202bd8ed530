"""The plan of a published method, by the name of the method, as values that change a scenario; its plans as candidates
of `clustersim plan`; and the ranking of given candidates, in order of the simulated step time.

>>> from clustersim.scenarios import Scenario
>>> from clustersim.scenarios.search.planning_problem import problem_of
>>> from clustersim.scenarios.search.published_plans import overrides
>>> scenario = Scenario.load("hello")
>>> plan = propose("piper", problem_of(scenario))
>>> plan.replicas, overrides(plan, scenario)["parallelism.pp"]
('1-1-1-1', 4)

>>> from clustersim.scenarios.scenario import Scenario
>>> hello = Scenario.load("hello")
>>> ranked = rank(hello, [{"training.micro_batch_size": 4}, {"training.micro_batch_size": 8}])
>>> [one.settings["training.micro_batch_size"] for one in ranked]
[8, 4]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from math import ceil, inf, lcm
from typing import Any

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search import candidate_evaluation
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.pipeline_chain import Plan
from clustersim.scenarios.search.planning_problem import Problem, problem_of
from clustersim.scenarios.specification.plan import AUTO
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError, ScheduleError, SimulatorError
from clustersim.simulator.reading.lookup import UnknownName, find, names, nearest
from clustersim.simulator.schedule.gc_paused import gc_paused
from clustersim.workloads.composition import RANK_ORDER
from clustersim.workloads.operators.stages import ENDS

METHODS = "clustersim.scenarios.search.methods"


def methods() -> list[str]:
    """Return the names of the published methods: the files of `scenarios.search.methods` with a function ``propose``.

    >>> methods()
    ['flexflow', 'pipedream', 'pipedream_2bw', 'piper']
    """
    return [name for name in names(METHODS) if hasattr(find(METHODS, name), "propose")]


def propose(method: str, problem: Problem) -> Plan:
    """Return the plan of *method* for *problem*. Raises `ScheduleError` if nothing fits, `UnknownName` for a name."""
    if method not in methods():
        raise UnknownName(method, nearest(method, methods()))
    proposed: Callable[[Problem], Plan] = find(METHODS, method).propose
    return proposed(problem)


ORDERS = {"pipedream": "pipedream", "pipedream_2bw": "pipedream_2bw"}
"""The pipeline order of a method; 1F1B of the others."""

WITHOUT_TENSORS = {"sequence_parallel": False, "tp_overlap": False, "tp_split": "column_row", "tp_head": "vocabulary"}
"""Keys that belong to tensor parallelism, and their defaults."""


def overrides(plan: Plan, scenario: BuiltScenario) -> dict[str, Any]:
    """Return what to set in *scenario* so that it executes *plan*, by dotted key.

    What follows from the plan is among it only where the scenario has another value. The global batch is the next
    multiple of the replicas of all stages, where they do not divide it. That is a free choice for PipeDream, which
    updates weights after each micro-batch. Raises `ScenarioError` for a plan that a scenario cannot execute: one tensor
    degree and one choice of recomputation hold for all stages.
    """
    training, given = scenario.specification.training, scenario.specification.parallelism
    if training is None:
        raise ScenarioError(f"{scenario.name} {scenario.aim}; it can execute no plan")
    tp, recompute = _of_all(plan)
    stages, replicas = len(plan.stages), [stage.replicas for stage in plan.stages]
    unit = lcm(*replicas) * plan.micro_batch_size
    chosen: dict[str, Any] = {
        "parallelism.tp": tp,
        "parallelism.pp": stages,
        "parallelism.dp": replicas[0] if len(set(replicas)) == 1 else replicas,
        "parallelism.schedule": ORDERS.get(plan.method, "1f1b"),
        "training.micro_batch_size": plan.micro_batch_size,
        "training.recompute": "full" if recompute else "none",
    }
    follows: dict[str, Any] = {
        "layout": _layout(plan, scenario) if stages > 1 else None,
        "placement": _placement(plan, scenario),
        "rank_order": list(RANK_ORDER),
        "virtual_stages": None,
        "scatter_gather": None,
        **(WITHOUT_TENSORS if tp == 1 else {}),
    }
    batch = ceil(training.global_batch_size / unit) * unit
    if batch != training.global_batch_size:
        chosen["training.global_batch_size"] = batch
    return chosen | {f"parallelism.{key}": value for key, value in follows.items() if getattr(given, key) != value}


def _of_all(plan: Plan) -> tuple[int, bool]:
    """Return the tensor degree and the recomputation of all stages. Raises `ScenarioError` if they differ."""
    if not plan.pipelined and len(plan.stages) > 1:
        raise ScenarioError(
            f"{plan.method} gives operators different parts; a scenario executes one number of parts by sample (dp) "
            "and one by parameter (tp), try uniform"
        )
    for key in ("tp", "recompute"):
        found = sorted({getattr(stage, key) for stage in plan.stages})
        if len(found) > 1:
            shown = " and ".join(str(value) for value in found)
            raise ScenarioError(f"{plan.method} has stages with {key} {shown}; a scenario has one for all, try uniform")
    return plan.stages[0].tp, plan.stages[0].recompute


def _layout(plan: Plan, scenario: BuiltScenario) -> list[int]:
    """Return the layers of each stage, embedding and head not counted."""
    assert scenario.model is not None
    counted = [layer.kind not in ENDS for layer in scenario.model.layers]
    layout, begin = [], 0
    for stage in plan.stages:
        layout.append(sum(counted[begin : begin + stage.layers]))
        begin += stage.layers
    return layout


def _placement(plan: Plan, scenario: BuiltScenario) -> str | list[int]:
    """Return the GPU of each rank, stage by stage; ``packed`` if they follow one another."""
    numbers = [gpu for stage in plan.stages for gpu in stage.gpus]
    if numbers == sorted(numbers):
        return "packed"
    cluster = scenario.cluster()
    nodes = list(dict.fromkeys(map(cluster.node_of, cluster.gpus)))
    by_node = sorted(range(len(cluster.gpus)), key=lambda gpu: nodes.index(cluster.node_of(cluster.gpus[gpu])))
    return [by_node[gpu] for gpu in numbers]


def candidates_of(propose: Callable[[Problem], Plan], space: Space, uniform: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield the plan of each micro-batch as a candidate, with values by dotted key; then the *uniform* plans.

    Those are all combinations of values by key in which every stage is alike, in the space of the method. Its own cost
    may take another one for better, but the answer is the best of all by simulation.

    A plan with replicas that do not divide the batch is left out: steps of other batches do not compare. Raises
    `ScenarioError` if the method has no other.
    """
    faults: list[ScheduleError] = []
    sizes = _micro_batch_sizes(space)
    for size in sizes:
        seed = space.scenario.specification.simulation.seed
        problem = problem_of(space.scenario, micro_batch_sizes=[size], tensor_degrees=_tensor_degrees(space), seed=seed)
        try:
            plan = propose(problem)
        except ScheduleError as error:
            faults.append(error)
            continue
        changes = overrides(plan, space.scenario)
        if batch := changes.get("training.global_batch_size"):
            faults.append(ScheduleError(_uneven(plan, batch)))
        else:
            yield Candidate(changes)
    if len(faults) == len(sizes):
        raise ScenarioError(str(faults[0]))
    yield from space.restricted(uniform).candidates()


def _uneven(plan: Plan, batch: int) -> str:
    return (
        f"{plan.method}: stages with {plan.replicas} replicas do not divide the global batch into micro-batches of "
        f"{plan.micro_batch_size}; try training.global_batch_size {batch}"
    )


def _micro_batch_sizes(space: Space) -> Sequence[int]:
    """Return the micro-batches to try; auto: powers of two that divide the batch."""
    training, listed = space.scenario.specification.training, space.search.get("micro_batch_size")
    assert training is not None
    batch = training.global_batch_size
    if listed == AUTO:
        return [2**n for n in range(batch.bit_length()) if batch % 2**n == 0]
    return [size for size in listed if batch % size == 0] if listed else [space.scenario.derived.micro_batch_size]


def _tensor_degrees(space: Space) -> Sequence[int]:
    """Return the tensor degrees to try; none for auto."""
    listed = space.search.get("tp")
    if listed == AUTO:
        return ()
    return listed or [space.scenario.derived.degree("tp")]


Settings = Mapping[str, Any]
"""Values by dotted key of a scenario."""


@dataclass(frozen=True)
class Ranked:
    """A candidate by its *settings*: the *estimate* (s), the memory that it *needs* (bytes) and whether that *fits*.

    *result*: of its simulation, None if it was not simulated. *error*: why it cannot run; empty if it can.
    """

    settings: Settings
    estimate: float = inf
    needs: float = 0.0
    fits: bool = False
    result: Mapping[str, Any] | None = None
    error: str = ""

    @property
    def seconds(self) -> float:
        """The simulated step time (s), else the estimate; infinite if it cannot run."""
        return float(self.result["step_time_s"]) if self.result else self.estimate


def rank(
    scenario: Scenario,
    candidates: Sequence[Settings],
    *,
    simulate: int | None = None,
    only_fitting: bool = False,
    processes: int = 1,
    on: str = "",
) -> list[Ranked]:
    """Return *candidates*, each a change of *scenario*, in order: simulated ones first, then by step time.

    *simulate*: how many of the best by estimate are simulated; None: all that can run. *only_fitting*: those that need
    more memory than there is are not simulated. A candidate that cannot run comes last, with its error.
    """
    source = candidate_evaluation.packed(scenario)
    jobs = [(_estimated, (source, dict(settings))) for settings in candidates]
    estimated = _outcomes(jobs, processes, on)
    ranked = [
        Ranked(settings, error=one) if isinstance(one, str) else Ranked(settings, *one)
        for settings, one in zip(candidates, estimated, strict=True)
    ]
    order = sorted(range(len(ranked)), key=lambda number: ranked[number].estimate)
    runs = [number for number in order if not ranked[number].error and (ranked[number].fits or not only_fitting)]
    chosen = runs if simulate is None else runs[:simulate]
    results = _outcomes([(_simulated, (source, dict(candidates[number]))) for number in chosen], processes, on)
    for number, result in zip(chosen, results, strict=True):
        one = ranked[number]
        failed = isinstance(result, str)
        ranked[number] = Ranked(
            one.settings, one.estimate, one.needs, one.fits, None if failed else result, result if failed else ""
        )
    return sorted(ranked, key=lambda one: (one.result is None, one.seconds))


def _outcomes(jobs: Sequence[Any], processes: int, on: str) -> list[Any]:
    """Return the results of *jobs* in their order; of a failed one the message."""
    found: list[Any] = [""] * len(jobs)
    with closing(execute(jobs, min(processes, len(jobs)), on)) as outcomes:
        for index, outcome in outcomes:
            found[index] = outcome.message if isinstance(outcome, Failure) else outcome
    return found


def _estimated(task: tuple[bytes, dict[str, Any]]) -> tuple[float, float, bool]:
    """Return (estimate in s, bytes, fits)."""
    scenario = _changed(*task)
    with gc_paused():
        one = _estimator(_shared(scenario)).estimate(scenario)
    assert one.seconds is not None
    return one.seconds, one.need.nbytes, one.need.fits


def _simulated(task: tuple[bytes, dict[str, Any]]) -> dict[str, Any]:
    return candidate_evaluation.simulated(_changed(*task))


def _changed(source: bytes, settings: dict[str, Any]) -> Scenario:
    scenario = candidate_evaluation.unpacked(source).changed(settings, json.dumps(settings))
    if scenario.variants:
        raise ScenarioError(f"{scenario.name} has variants; rank takes one scenario")
    if scenario.specification.training is None:
        raise SimulatorError(f"{scenario.name} {scenario.aim}; there is no training to rank")
    return scenario


def _shared(scenario: Scenario) -> bytes:
    """Return the scenario without the keys that an `Estimator` may vary, as bytes."""
    data = {key: value for key, value in scenario.source.data.items() if key in SHARED}
    training = {key: value for key, value in scenario.source.data["training"].items() if key in FIXED}
    one = {"training": {"global_batch_size": 1, **training}, "parallelism": {"dp": 1}}
    return candidate_evaluation.pickled({**data, **one})


SHARED = ("version", "cluster", "model", "network", "software")
"""The sections that an `Estimator` reads from its scenario."""

FIXED = ("precision",)
"""Keys of the training section that change the prices of layers; the others are read for each candidate."""


@lru_cache(maxsize=8)
def _estimator(shared: bytes) -> Estimator:
    return Estimator(candidate_evaluation.unpacked(shared))
