"""The space of a plan: the values that may vary, their combinations, and the rules that reject some of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from pydantic import ValidationError

from scenarios.build.built import BuiltScenario
from scenarios.build.derived import Derived, derive
from scenarios.build.notes import selective_saves
from scenarios.build.schedule import model_share
from scenarios.specification.parallelism import ParallelismSection
from scenarios.specification.plan import AUTO, SEARCHABLE, TRAINING, PlanSection
from scenarios.specification.specification import Specification
from scenarios.specification.training import Training
from simulator.document import Fault
from simulator.document.validation import reason
from simulator.errors import ScenarioError, ScheduleError
from workloads.composition import PARALLELISMS
from workloads.operators.parameter import REPLICAS
from workloads.parallelism.search import Choices, Chosen, Job
from workloads.stages import ENDS, stages_of

KEPT = ("cp", "layout", "placement", "offload")
"""Keys that do not vary unless the scenario names them."""

DIVISIBILITY, GPUS, RULES, ORDER, MEMORY = "divisibility", "gpus", "rules", "order", "memory"
"""Why a candidate is rejected: sizes that do not divide; degrees that need more GPUs or leave some over; keys that do
not go together; a pipeline order that cannot run so; memory."""


class Rejected(ScenarioError):  # noqa: N818 - it is the outcome of a check
    """A candidate that cannot run: *kind* of the rule, and *why* in words."""

    def __init__(self, kind: str, why: str) -> None:
        self.kind, self.why = kind, why
        super().__init__(why)


@dataclass(frozen=True)
class Candidate:
    """One choice of the keys that may vary, *values* by key.

    A key with a dot is any key of a scenario. Published methods use them: they also set the replicas of each stage.
    """

    values: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """The values as text: equal for equal candidates."""
        return json.dumps(self.values, sort_keys=True)

    @property
    def settings(self) -> dict[str, Any]:
        """The values by dotted key of a scenario, without those that stand for no key."""
        found = {}
        for key, value in self.values.items():
            if "." in key:
                found[key] = value
            elif value is not None:
                found[f"{'training' if key in TRAINING else 'parallelism'}.{key}"] = value
        return found

    @property
    def free(self) -> bool:
        """True if it sets keys with a dot."""
        return any("." in key for key in self.values)

    def differences(self, other: Candidate) -> dict[str, Any]:
        """Return the values of this candidate that *other* does not have."""
        return {key: value for key, value in self.values.items() if other.values.get(key) != value}

    def changed(self, **values: Any) -> Candidate:
        """Return the candidate with other *values*."""
        return Candidate({**self.values, **values})

    @property
    def name(self) -> str:
        """The values in words: ``tp 8 sp, pp 4 interleaved x2, micro-batch 1, recompute full, zero 1``."""
        return ", ".join(filter(None, _words(self.values)))


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    known = {key.rpartition(".")[2]: value for key, value in values.items()}
    tp, pp = known.pop("tp", None), known.pop("pp", None)
    sequence, schedule = known.pop("sequence_parallel", None), known.pop("schedule", None)
    virtual, data = known.pop("virtual_stages", None), known.pop("data", None)
    yield f"tp {tp}{' sp' if sequence else ''}" if tp else "sp" if sequence else ""
    order = f" {schedule}{f' x{virtual}' if virtual else ''}" if schedule and pp != 1 else ""
    yield f"pp {pp}{order}" if pp else order.strip()
    yield described_data(data) if data else ""
    yield f"micro-batch {known.pop('micro_batch_size')}" if known.get("micro_batch_size") else ""
    for key, value in known.items():
        if value is not None and key != "micro_batch_size":
            yield f"{key} {described(key, value)}"


def described(key: str, value: Any) -> str:
    """Return the *value* of *key* in words; of a section its method and numbers.

    >>> described("recompute", {"method": "uniform", "num_layers": 2})
    'uniform 2'
    """
    if key == "data":
        return described_data(value)
    return " ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def described_data(data: Any) -> str:
    """Return the method of data parallelism in words.

    >>> described_data({"method": "zero", "stage": 1, "bucket": "40 MB"})
    'zero 1'
    """
    if not isinstance(data, Mapping):
        return str(data)
    return f"{data.get('method', 'ddp')} {data['stage']}" if "stage" in data else str(data.get("method", "ddp"))


@dataclass(frozen=True)
class Variant:
    """A candidate as the sections of a scenario."""

    candidate: Candidate
    specification: Specification
    derived: Derived


class Space:
    """The candidates of *scenario* by its section ``plan``."""

    def __init__(self, scenario: BuiltScenario) -> None:
        if scenario.variants:
            raise ScenarioError(f"{scenario.name} has variants; plan takes one scenario, choose one with --set")
        training, model = scenario.specification.training, scenario.model
        if training is None or model is None:
            raise ScenarioError(f"{scenario.name} measures a collective; there is no training to plan")
        if scenario.derived.by_stage:
            message = "plan varies the degrees of all stages together; give one number, or auto"
            raise scenario.document.error(("parallelism", "dp"), message)
        search = scenario.specification.plan.search
        if scenario.specification.parallelism.mode != "1d" and (
            not search or {"tp", "sequence_parallel"} & set(search)
        ):
            message = "plan varies tp along one dimension; give tp a number without tp_mode, or plan.search without tp"
            raise scenario.document.error(("parallelism", "tp"), message)
        self.scenario = scenario
        self._parallelisms: dict[str, ParallelismSection | Rejected] = {}
        self.plan: PlanSection = scenario.specification.plan
        self.given: Mapping[str, Any] = scenario.source.data.get("parallelism") or {}
        self.training: Mapping[str, Any] = scenario.source.data["training"]
        self.job = Job(
            sum(layer.kind not in ENDS for layer in model.layers),
            training.global_batch_size,
            len(scenario.cluster().gpus),
            _node(scenario),
            self.given,
            selective_saves(scenario),
        )

    @cached_property
    def search(self) -> Mapping[str, Any]:
        """What to try by key: auto, or a list of values."""
        return self.plan.search or {key: AUTO for key in SEARCHABLE if key not in KEPT}

    def candidates(self) -> Iterator[Candidate]:
        """Yield all combinations, in the order of the keys."""
        return (Candidate(values) for values in self._chosen({}, list(SEARCHABLE)))

    def as_given(self) -> Candidate:
        """Return the values that the scenario itself has for the keys that may vary."""
        specification = self.scenario.specification
        assert specification.training is not None
        dumped = specification.parallelism.model_dump(mode="json", exclude_none=False)
        found = {key: dumped[key] for key in SEARCHABLE if key not in TRAINING and key in self.varying}
        trained = specification.training.model_dump(mode="json", exclude_none=True)
        found |= {key: trained.get(key) for key in TRAINING if key in self.varying}
        if "data" in found:
            found["data"] = {"method": specification.parallelism.data.method, **(self.given.get("data") or {})}
        return Candidate(found)

    @cached_property
    def varying(self) -> set[str]:
        """The keys of candidates: those that are searched, and others of the same parallelism that follow from them."""
        related = {key for cls in PARALLELISMS if set(cls.searchable) & set(self.search) for key in cls.searchable}
        return {*self.search, *related}

    def _chosen(self, chosen: dict[str, Any], keys: list[str]) -> Iterator[dict[str, Any]]:
        if not keys:
            yield {key: value for key, value in chosen.items() if key in self.varying}
            return
        key, *others = keys
        for value in self._values(key, chosen):
            yield from self._chosen({**chosen, key: value}, others)

    def _values(self, key: str, chosen: Chosen) -> Sequence[Any]:
        """Return the values of *key* after those *chosen*; one where there is nothing to choose."""
        given = (self.training if key in TRAINING else self.given).get(key, _default(key))
        if key not in self.varying:
            return (given,)
        auto = list(CHOICES[key](self.job, chosen))
        if len(auto) == 1:
            return auto if key in self.search or key not in self.given else [given if auto[0] is not None else None]
        listed = self.search.get(key)
        return (given,) if listed is None else auto if listed == AUTO else listed

    def variant(self, candidate: Candidate) -> Variant:
        """Return *candidate* as sections of a scenario. Raises `Rejected`."""
        if candidate.free:
            try:
                changed = self.scenario_of(candidate)
            except (ScenarioError, ScheduleError) as error:
                raise Rejected(RULES, _told(error)) from None
            return Variant(candidate, changed.specification, changed.derived)
        parallelism, training = self._sections(candidate)
        base = self.scenario.specification
        specification = base.model_copy(update={"parallelism": parallelism, "training": training})
        inner = prod(
            degree
            for part in parallelism.parts.values()
            if part.axis != REPLICAS
            for degree in part.degrees(self.job.gpus).values()
        )
        if parallelism.dp == "auto" and self.job.gpus % inner:
            raise Rejected(GPUS, f"{_degrees(parallelism)} = {inner} does not divide the {self.job.gpus} GPUs")
        try:
            derived = derive(specification, self.scenario.cluster(), self.scenario.document)
            share = model_share(self._model, parallelism.parts, self.scenario.document)
            stages_of(share, parallelism.pp * parallelism.stages_per_rank, parallelism.layout, parallelism.split_rank)
        except (ScenarioError, ScheduleError) as error:
            raise Rejected(DIVISIBILITY, _told(error)) from None
        return Variant(candidate, specification, derived)

    @property
    def _model(self) -> Any:
        return self.scenario.model

    def _sections(self, candidate: Candidate) -> tuple[ParallelismSection, Training]:
        own = {key: value for key, value in candidate.values.items() if key not in TRAINING}
        known = json.dumps(own)
        if known not in self._parallelisms:
            self._parallelisms[known] = self._parallelism(own)
        parallelism = self._parallelisms[known]
        if isinstance(parallelism, Rejected):
            raise parallelism
        trained = {**self.training, **{key: v for key, v in candidate.values.items() if key in TRAINING}}
        try:
            return parallelism, Training.model_validate(trained)
        except ValidationError as error:
            raise Rejected(DIVISIBILITY, _first(error)) from None

    def _parallelism(self, own: Mapping[str, Any]) -> ParallelismSection | Rejected:
        data = {**self.given, **own, **({"dp": AUTO} if {"tp", "cp", "pp"} & set(self.search) else {})}
        try:
            return ParallelismSection.model_validate({key: v for key, v in data.items() if v is not None})
        except ValidationError as error:
            return Rejected(RULES, _first(error))

    def scenario_of(self, candidate: Candidate) -> BuiltScenario:
        """Return the scenario of *candidate*, fully validated."""
        settings = candidate.settings
        if candidate.free:
            return self.scenario.changed(settings, "the plan")
        if {"tp", "cp", "pp"} & set(self.search) and "dp" in self.given:
            settings["parallelism.dp"] = AUTO
        source = self.scenario.source.data
        dropped = [key for key, value in candidate.values.items() if value is None and key in self.given]
        kept = {key: value for key, value in self.given.items() if key not in dropped}
        document = replace(self.scenario.source, data={**source, **({"parallelism": kept} if kept else {})})
        return replace(self.scenario, source=document).changed(settings, "the plan")


def _micro_batch_sizes(job: Job, chosen: Chosen) -> Sequence[int]:
    """Powers of two that divide the batch."""
    return [2**n for n in range(job.batch.bit_length()) if job.batch % 2**n == 0]


def _recompute(job: Job, chosen: Chosen) -> Sequence[str]:
    return ("none", "selective", "full") if job.saves else ("none", "full")


def _placements(job: Job, chosen: Chosen) -> Sequence[str]:
    return ("packed", "round_robin") if job.gpus > job.node else ("packed",)


CHOICES: Mapping[str, Choices] = {
    **{key: choices for cls in PARALLELISMS for key, choices in cls.searchable.items()},
    "placement": _placements,
    "micro_batch_size": _micro_batch_sizes,
    "recompute": _recompute,
    "offload": lambda job, chosen: ({"activations": "none"}, {"activations": "auto"}),
}
"""The values that are tried with ``auto``, by key."""


def _default(key: str) -> Any:
    field = (Training if key in TRAINING else ParallelismSection).model_fields[key]
    return None if key == "data" else field.get_default()


def _node(scenario: BuiltScenario) -> int:
    """Return the number of GPUs in the largest node."""
    cluster = scenario.cluster()
    nodes: dict[int | str, int] = {}
    for gpu in cluster.gpus:
        nodes[cluster.node_of(gpu)] = nodes.get(cluster.node_of(gpu), 0) + 1
    return max(nodes.values())


def _degrees(parallelism: ParallelismSection) -> str:
    parts = (part for part in parallelism.parts.values() if part.axis != REPLICAS)
    return " x ".join(f"{axis} {n}" for part in parts for axis, n in part.degrees(1).items() if n > 1)


def _first(error: ValidationError) -> str:
    """Return the first fault of *error* with its key."""
    detail = error.errors(include_url=False)[0]
    fault = detail.get("ctx", {}).get("error")
    path = (*detail["loc"], *(fault.path if isinstance(fault, Fault) else ()))
    return f"{'.'.join(map(str, path))}: {reason(detail)}"


def _told(error: Exception) -> str:
    """Return the message of *error* without the place in the file."""
    first = str(error).partition("\n")[0]
    for section in ("parallelism.", "training."):
        _, found, told = first.rpartition(section)
        if found and ": " in told:
            return told
    return first
