"""Data parallelism: replicas of the model, each with its part of the batch.

How their gradients meet is the matter of the method, a file of this folder: ``data: {method: ...}``.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, Literal

from pydantic import Field

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.quantities import Count
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.ops import Collective, Send
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import Choices, Chosen, DataMethod, Job, Parallelism, TrainingStep
from clustersim.workloads.parallelism._registry import METHODS, Method, declared, default_method

WITH_PIPELINE: Sequence[Mapping[str, Any]] = ({"method": "ddp"}, {"method": "zero", "stage": 1})
"""Methods that reduce gradients once a step, so that they go with a pipeline."""

WITHOUT_PIPELINE: Sequence[Mapping[str, Any]] = (
    {"method": "zero", "stage": 2},
    {"method": "zero", "stage": 3},
    {"method": "fsdp"},
)
"""Methods that communicate in every micro-batch."""


def _methods(job: Job, chosen: Chosen) -> Sequence[Mapping[str, Any]]:
    """Each method with the keys of the scenario's own that it shares, such as the size of a bucket."""
    methods = [*WITH_PIPELINE, *(WITHOUT_PIPELINE if chosen["pp"] == 1 else ())]
    return [with_shared_keys(method, job.given.get("data") or {}) for method in methods]


def with_shared_keys(method: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return *method* with those keys of *given* that it has too, except for those that it sets.

    >>> with_shared_keys({"method": "zero", "stage": 1}, {"bucket": "40 MB", "first_bucket": "1 MB"})
    {'bucket': '40 MB', 'method': 'zero', 'stage': 1}
    """
    found = declared(str(method["method"]), DataMethod) if method["method"] in METHODS else None
    keys = set(found.model_fields) - {"method", "stage", "groups", "allow"} if found else set()
    return {key: value for key, value in given.items() if key in keys} | dict(method)


class Data(Parallelism):
    """Data parallelism: replicas of the model, each with its part of the batch."""

    axis: ClassVar[str] = REPLICAS
    key: ClassVar[str] = "data"
    searchable: ClassVar[Mapping[str, Choices]] = {"data": _methods}

    dp: Count | Literal["auto"] | list[Count] = "auto"
    """Replicas of the model; auto: as many as there are GPUs for; a list: those of each pipeline rank."""
    data: Method = Field(default_factory=default_method)
    """How the replicas exchange gradients, and what they shard."""

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """As given, or what is left of *ranks*; 1 if they are given by pipeline rank (`replicas_by_stage`)."""
        if isinstance(self.dp, list):
            return {REPLICAS: 1}
        return {REPLICAS: max(1, ranks) if self.dp == "auto" else self.dp}

    @property
    def replicas_by_stage(self) -> tuple[int, ...] | None:
        """The replicas of each pipeline rank, if they are given one by one."""
        return tuple(self.dp) if isinstance(self.dp, list) else None

    def check(self, others: Mapping[str, Parallelism]) -> None:
        """Some methods keep the whole model on every GPU, or have rules of their own."""
        self.data.check(others)
        for key in (key for key, other in others.items() if other.reduces_apart):
            if self.replicas_by_stage:
                raise Fault(key, "needs as many replicas of each stage; give dp as one number")
            if self.data.whole_model:
                raise Fault(key, f"reduces some gradients apart, but {self.data.method} all together; take ddp or zero")
        for key, other in others.items() if self.data.whole_model else ():
            if prod(other.degrees(1).values()) != 1:
                raise Fault(key, f"must be 1: {self.data.method} keeps the whole model on every GPU")

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """As the method does. Raises `ScheduleError` if one of the user's own exchanges nothing between replicas."""
        made = self.data.apply(schedule, step)
        replicas = schedule.mesh.axes.get(REPLICAS)
        several = replicas is not None and len(replicas.groups[0]) > 1
        if "." in self.data.method and several and _exchanges(made) <= _exchanges(schedule):
            raise ScheduleError(f"{self.data.method} exchanges nothing between the replicas; their weights differ")
        return made

    def facts(self) -> Mapping[str, Any]:
        """Those of the method."""
        return self.data.facts()


def _exchanges(schedule: Schedule) -> int:
    """How many distinct communications the programs of *schedule* have."""
    ops = (op for program in schedule.programs for op in program.distinct())
    return sum(isinstance(op, Collective | Send) and bool(op.nbytes) for op in ops)
