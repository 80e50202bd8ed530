"""The parallelism section: how the model is distributed over the ranks, and on which GPUs the ranks are.

Its keys are those of the files in `workloads.parallelism`. A key with a dot is the import path of a parallelism of the
user's own; its value is a section with keys of its own.
"""

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from clustersim.simulator.reading.quantities import Index, Section
from clustersim.simulator.reading.validation import Fault, listed
from clustersim.workloads.composition import PARALLELISMS, RANK_ORDER, composed, numbered_along
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import Parallelism
from clustersim.workloads.parallelism._registry import users_own
from clustersim.workloads.parallelism.context import Context
from clustersim.workloads.parallelism.data import Data
from clustersim.workloads.parallelism.domain import Domain
from clustersim.workloads.parallelism.expert import Expert
from clustersim.workloads.parallelism.pipeline import Pipeline
from clustersim.workloads.parallelism.tensor import Tensor


def _schema(schema: dict[str, Any]) -> None:
    """Add the descriptions of all parallelisms, and the form of the user's own ones, to the JSON *schema*."""
    documented = [inspect.getdoc(cls) or "" for cls in PARALLELISMS]
    schema["description"] = "\n\n".join([*documented, schema["description"]])
    schema["patternProperties"] = {r"\.": {"type": "object"}}
    own = {"type": "object", "properties": {"method": {"type": "string", "pattern": r"\."}}, "required": ["method"]}
    schema["properties"]["data"]["oneOf"].append(own)


class ParallelismSection(Data, Pipeline, Domain, Expert, Context, Tensor):
    """The section of a scenario.

    *rank_order*: the axes along which ranks are numbered, fastest first. *placement* maps ranks to GPUs.
    """

    model_config = ConfigDict(json_schema_extra=_schema)

    rank_order: list[str] = Field(default=list(RANK_ORDER))
    """Axes along which ranks are numbered, fastest first."""
    placement: Literal["packed", "round_robin"] | list[Index] = "packed"
    """GPU of each rank: node by node (packed), round robin over the nodes, or a list of GPU numbers."""
    _own: dict[str, Parallelism] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _composed(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate keys with a dot as the user's own parallelisms, and all parallelisms against one another."""
        if not isinstance(data, dict):
            return handler(data)
        own = {key: value for key, value in data.items() if isinstance(key, str) and "." in key}
        made = handler({key: value for key, value in data.items() if key not in own})
        if own:
            made._own.update(_validated(own))
        for key, part in made.parts.items():
            part.check({name: other for name, other in made.parts.items() if name != key})
        axes = numbered_along(list(made.parts.values()))
        idle = {cls.axis for cls in PARALLELISMS} - set(axes)
        if sorted(axis for axis in made.numbering if axis not in idle) != sorted(axes):
            given = ", ".join(made.rank_order) or "nothing"
            raise Fault("rank_order", f"must name each of {listed(axes).replace(' or ', ' and ')} once, not {given}")
        return made

    @field_validator("placement")
    @classmethod
    def _distinct(cls, placement: str | list[int]) -> str | list[int]:
        if isinstance(placement, list):
            for place, gpu in enumerate(placement):
                if gpu in placement[:place]:
                    raise ValueError(f"GPU {gpu} stands twice; every rank needs a GPU of its own")
        return placement

    @model_serializer(mode="wrap")
    def _with_own(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        dumped |= {key: part.model_dump(mode=info.mode) for key, part in self._own.items()}
        return dumped | (
            {"rank_order": self.numbering} if self.numbering != dumped.get("rank_order", self.rank_order) else {}
        )

    @cached_property
    def parts(self) -> Mapping[str, Parallelism]:
        """The parallelisms in the order of their passes, by the key at which their errors are reported."""
        return composed({cls.key: self._part(cls) for cls in PARALLELISMS}, self._own)

    def _part(self, cls: type[Parallelism]) -> Parallelism:
        return cls.model_construct(**{name: getattr(self, name) for name in cls.model_fields})

    @cached_property
    def within_replica(self) -> tuple[str, ...]:
        """What of the section decides the operators of a layer, as text: all but the pipeline and the replicas."""
        return tuple(repr(part) for part in self.parts.values() if part.axis not in (REPLICAS, PIPELINE))

    @cached_property
    def numbering(self) -> list[str]:
        """The rank order as given, else the default with the user's own axes."""
        given = "rank_order" in self.model_fields_set
        return self.rank_order if given else numbered_along(list(self.parts.values()))


def _validated(own: Mapping[str, Any]) -> dict[str, Parallelism]:
    """Return the user's own parallelisms, each validated by the class in its module."""
    fields: dict[str, Any] = {}
    for number, name in enumerate(own):
        try:
            fields[f"part{number}"] = users_own(name, Parallelism), Field(alias=name)
        except Fault as fault:
            raise Fault((name, *fault.path), fault.message, fault.hint) from None
    made = create_model("Own", __base__=Section, **fields).model_validate(dict(own))
    return {name: getattr(made, f"part{number}") for number, name in enumerate(own)}
