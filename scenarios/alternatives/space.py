"""What may vary in a scenario: its keys, the values that each parallelism declares for them, and the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, TypeVar

from pydantic import ValidationError

from clustersim.scenarios.alternatives.candidate import DIVISIBILITY, GPUS, RULES, Candidate, Rejected
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import Derived, check_stages
from clustersim.scenarios.build.description import selective_saves
from clustersim.scenarios.build.schedule import model_share
from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.scenarios.specification.plan import AUTO, KEPT, SEARCHABLE, TRAINING, PlanSection
from clustersim.scenarios.specification.training import PrecisionByOperator, Training
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError, ScheduleError
from clustersim.simulator.reading.validation import Fault, reason
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.composition import PARALLELISMS
from clustersim.workloads.default_software_stack import StackChoice
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.stages import ENDS, stages_of
from clustersim.workloads.parallelism._parallelism import Choices, Chosen, Job, divisors
from clustersim.workloads.parallelism.data import WITH_PIPELINE
from clustersim.workloads.software_stack import specification as stack_of

T = TypeVar("T")

DEGREES = ("tp", "cp", "pp")
"""Keys on which the number of replicas depends."""


class Space:
    """The candidates of *scenario* by its section ``plan``."""

    def __init__(self, scenario: BuiltScenario) -> None:
        if scenario.variants:
            raise ScenarioError(
                f"{scenario.name} has variants; plan takes one scenario: without_variants() or one of variants"
            )
        if scenario.model is None or scenario.specification.training is None:
            raise ScenarioError(f"{scenario.name} {scenario.aim}; there is no training to plan")
        self.scenario = scenario
        self._parallelisms: dict[str, ParallelismSection | Rejected] = {}
        self._shares: dict[tuple[str, ...], Model | Exception] = {}
        self._trainings: dict[str, Training | Rejected] = {}
        self._latest: tuple[Mapping[str, Any], ParallelismSection | Rejected] | None = None
        self._distributed: dict[tuple[int, int | None], _Distributed | Rejected] = {}
        self._stacks: dict[str, tuple[Software, Sequence[str]]] = {}
        self.plan: PlanSection = scenario.specification.plan
        self.given: Mapping[str, Any] = scenario.source.data.get("parallelism") or {}
        self.training: Mapping[str, Any] = scenario.source.data["training"]

    def check(self) -> None:
        """Raise `ScenarioError` for a scenario whose degrees cannot vary: by stage, or on a grid of tp."""
        scenario, search = self.scenario, self.plan.search
        if scenario.derived.by_stage:
            message = "plan varies the degrees of all stages together; give one number, or auto"
            raise scenario.document.error(("parallelism", "dp"), message)
        if scenario.specification.parallelism.mode != "1d" and (
            not search or {"tp", "sequence_parallel"} & set(search)
        ):
            message = "plan varies tp along one dimension; give tp a number without tp_mode, or plan.search without tp"
            raise scenario.document.error(("parallelism", "tp"), message)

    @cached_property
    def job(self) -> Job:
        """What is trained where."""
        scenario, training = self.scenario, self.scenario.specification.training
        model, cluster = scenario.model, scenario.cluster()
        assert model is not None
        assert training is not None
        shape = model.shape if isinstance(model, Transformer) else None
        offers = self._offers()
        known = scenario.derived.accelerator.peak_flops if scenario.derived.accelerator else {}
        formats = known if isinstance(known, Mapping) else {}
        half = next((one for one in ("bf16", "fp16") if one in formats), "fp32")
        low = [{"matmul": "fp8", "rest": half}] if shape and "fp8" in formats and "fp8" in offers else []
        return Job(
            sum(layer.kind not in ENDS for layer in model.layers),
            training.global_batch_size,
            len(cluster.gpus),
            gpus_of_node(scenario),
            self.given,
            selective_saves(scenario),
            tokens=shape.seq_length if shape else 0,
            experts=shape.experts.count if shape and shape.experts else 0,
            overlaps="tp_overlap" in offers,
            precisions=(half, *low),
        )

    def _offers(self) -> set[str]:
        """Return what the software stack offers; of a default one also what that of tensor parallelism offers."""
        found: set[str] = set(stack_of(self.scenario.stack).offers)
        for data in WITH_PIPELINE if self.scenario.stack_choice.reason else ():
            with suppress(Rejected):
                found |= set(stack_of(self.variant(Candidate({"tp": 2, "pp": 1, "data": data})).stack).offers)
        return found

    @cached_property
    def search(self) -> Mapping[str, Any]:
        """What to try by key: auto, or a list of values."""
        return self.plan.search or {key: AUTO for key in SEARCHABLE if key not in KEPT}

    def candidates(self) -> Iterator[Candidate]:
        """Yield all combinations, in the order of the keys."""
        return (Candidate(values) for values in self._chosen({}, list(SEARCHABLE)))

    def restricted(self, values: Mapping[str, Any]) -> Space:
        """Return the space with those *values* of keys that are searched, all others as the scenario has them."""
        given = dict.fromkeys(self.search, AUTO) | dict(values)
        search = {
            key: given[key] if self.search[key] == AUTO else self.search[key] for key in values if key in self.search
        }
        return Space(self.scenario.changed({"plan.search": search, "plan.method": "exhaustive"}, "the method's space"))

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

    def settled(self, candidate: Candidate) -> Candidate:
        """Return *candidate* as `candidates` has it.

        Keys with nothing to choose beside the others, and keys that are not searched, have the one value that they may
        have.
        """
        chosen: dict[str, Any] = {}
        for key in SEARCHABLE:
            section = self.training if key in TRAINING else self.given
            chosen[key] = candidate.values.get(key, section.get(key, _default(key)))
            if key in candidate.values and (key not in self.search or len(self.choices(key, chosen)) == 1):
                chosen[key] = self._values(key, chosen)[0]
        return candidate.changed(**{key: chosen[key] for key in candidate.values if key in chosen})

    def fed(self, candidate: Candidate) -> Candidate:
        """Return *candidate* with the largest micro-batch, at most its own, with which all GPUs share the batch."""
        inner = prod(candidate.values.get(key) or self.scenario.derived.degree(key) for key in DEGREES)
        replicas, job = max(1, self.job.gpus // inner), self.job
        most = candidate.values.get("micro_batch_size") or self.scenario.derived.micro_batch_size
        size = max((one for one in divisors(job.batch, most) if job.batch % (one * replicas) == 0), default=1)
        return candidate.changed(micro_batch_size=size)

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
        if key == "micro_batch_size" and given is None:
            given = self.scenario.derived.micro_batch_size
        if key not in self.varying:
            return (given,)
        auto = self.choices(key, chosen)
        if len(auto) == 1:
            # what is off without tensor parallelism, or without a pipeline, is off although the scenario has it
            return [given] if auto[0] and key not in self.search and key in self.given else auto
        listed = self.search.get(key)
        if listed == AUTO:
            return auto if given is None or given in auto else [given, *auto]
        return (given,) if listed is None else listed

    def choices(self, key: str, chosen: Chosen) -> list[Any]:
        """Return the values of *key* that are worth a try after those *chosen*."""
        return list(CHOICES[key](self.job, chosen))

    def variant(self, candidate: Candidate) -> BuiltScenario:
        """Return the scenario of *candidate*, with what `run` takes by default for it. Raises `Rejected`."""
        if candidate.free:
            try:
                return self.scenario_of(candidate)
            except (ScenarioError, ScheduleError) as error:
                raise Rejected(RULES, _told(error)) from None
        parallelism, training = self._sections(candidate)
        changes = {"parallelism": parallelism, "training": training}
        made = self.scenario.varied(self.scenario.specification.model_copy(update=changes))
        # of the keys of training that vary, only the micro-batch decides how ranks and batch are distributed
        key = id(parallelism), training.micro_batch_size
        if key not in self._distributed:
            self._distributed[key] = self._distribution(made)
        found = _or_raised(self._distributed[key])
        made.__dict__.update(derived=found.derived, stack_choice=found.choice, software=found.software)
        if fault := _not_offered(made, found.offers):
            raise Rejected(RULES, fault)
        return made

    def _distribution(self, made: BuiltScenario) -> _Distributed | Rejected:
        try:
            derived = made.derived
            check_stages(made.specification, derived)
        except (ScenarioError, ScheduleError) as error:
            return Rejected(DIVISIBILITY, _told(error))
        if made.stack not in self._stacks:
            self._stacks[made.stack] = made.software, stack_of(made.stack).offers
        return _Distributed(derived, made.stack_choice, *self._stacks[made.stack])

    def allows(self, candidate: Candidate) -> bool:
        """Return whether no rule rejects *candidate*."""
        try:
            self.variant(candidate)
        except Rejected:
            return False
        return True

    def _sections(self, candidate: Candidate) -> tuple[ParallelismSection, Training]:
        own = dict(candidate.values)
        trained = {key: own.pop(key) for key in TRAINING if key in own}
        if self._latest is None or own != self._latest[0]:
            # keys of training vary fastest: most candidates have the parallelism of the one before
            known = str(own)
            if known not in self._parallelisms:
                self._parallelisms[known] = self._parallelism(own)
            self._latest = own, self._parallelisms[known]
        parallelism = _or_raised(self._latest[1])
        known = str(trained)
        if known not in self._trainings:
            self._trainings[known] = self._training(trained)
        return parallelism, _or_raised(self._trainings[known])

    def _training(self, own: Mapping[str, Any]) -> Training | Rejected:
        try:
            return Training.model_validate({**self.training, **own})
        except ValidationError as error:
            return Rejected(DIVISIBILITY, _first(error))

    def _parallelism(self, own: Mapping[str, Any]) -> ParallelismSection | Rejected:
        data = {**self.given, **own, **({"dp": AUTO} if self._redivides(own) else {})}
        inner, gpus = {key: data.get(key, 1) for key in DEGREES}, len(self.scenario.cluster().gpus)
        if data.get("dp", AUTO) == AUTO and all(isinstance(degree, int) for degree in inner.values()):
            ranks = prod(inner.values())
            if gpus % ranks:
                shown = " x ".join(f"{axis} {degree}" for axis, degree in inner.items() if degree > 1)
                return Rejected(GPUS, f"{shown} = {ranks} does not divide the {gpus} GPUs")
        try:
            made = ParallelismSection.model_validate({key: v for key, v in data.items() if v is not None})
        except ValidationError as error:
            return Rejected(RULES, _first(error))
        try:
            stages_of(self._share(made), made.pp * made.stages_per_rank, made.layout, made.split_rank)
        except (ScenarioError, ScheduleError) as error:
            return Rejected(DIVISIBILITY, _told(error))
        return made

    def _share(self, parallelism: ParallelismSection) -> Model:
        """Return the model of one rank. Raises `ScenarioError` if a degree does not divide it."""
        key = parallelism.within_replica
        if key not in self._shares:
            assert self.scenario.model is not None
            try:
                self._shares[key] = model_share(self.scenario.model, parallelism.parts, self.scenario.document)
            except (ScenarioError, ScheduleError) as error:
                self._shares[key] = error
        return _or_raised(self._shares[key])

    def _redivides(self, values: Mapping[str, Any]) -> bool:
        """Return whether the replicas of a candidate follow from its degrees."""
        given = {key: values.get(key, self.given.get(key, 1)) != self.given.get(key, 1) for key in DEGREES}
        return any(given.values()) or bool(set(DEGREES) & set(self.search))

    def scenario_of(self, candidate: Candidate) -> BuiltScenario:
        """Return the scenario of *candidate*, fully validated."""
        settings = candidate.settings
        if candidate.free:
            return self.scenario.changed(settings, "the plan")
        if "dp" in self.given and self._redivides(candidate.values):
            settings["parallelism.dp"] = AUTO
        source = self.scenario.source.data
        dropped = [key for key, value in candidate.values.items() if value is None and key in self.given]
        kept = {key: value for key, value in self.given.items() if key not in dropped}
        document = replace(self.scenario.source, data={**source, **({"parallelism": kept} if kept else {})})
        return replace(self.scenario, source=document).changed(settings, "the plan")


@dataclass(frozen=True, slots=True)
class _Distributed:
    """What follows from the parallelism and the micro-batch of a candidate, whatever its other keys are."""

    derived: Derived
    choice: StackChoice
    software: Software
    offers: Sequence[str]


def _or_raised(found: T | Exception) -> T:
    """Return what was *found*; raise it if it is why there is nothing."""
    if isinstance(found, Exception):
        raise found.with_traceback(None)
    return found


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
    "precision": lambda job, chosen: job.precisions,
}
"""The values that are tried with ``auto``, by key."""


def _default(key: str) -> Any:
    field = (Training if key in TRAINING else ParallelismSection).model_fields[key]
    return None if key == "data" else field.get_default()


def _not_offered(made: BuiltScenario, offers: Sequence[str]) -> str:
    """Return what the default software stack of *made*, with these *offers*, lacks for its keys; empty if nothing.

    A stack that the user names is believed to have it.
    """
    stack, default = made.stack, made.stack_choice.reason
    training = made.specification.training
    assert training is not None
    low = isinstance(training.precision, PrecisionByOperator)
    asked = {"fp8": low, "tp_overlap": made.specification.parallelism.tp_overlap}
    lacks = [key for key, value in asked.items() if value and key not in offers]
    return f"{stack}, the default, has no {lacks[0]}" if default and lacks else ""


def gpus_of_node(scenario: BuiltScenario) -> int:
    """Return the number of GPUs in the largest node."""
    cluster = scenario.cluster()
    nodes: dict[int | str, int] = {}
    for gpu in cluster.gpus:
        nodes[cluster.node_of(gpu)] = nodes.get(cluster.node_of(gpu), 0) + 1
    return max(nodes.values())


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
