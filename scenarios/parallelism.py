"""The parallelism section says how the model is spread over the ranks, and where the ranks live."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from scenarios.names import known
from simulator.document import Count, Fault, Flag, Fraction, Index, Section, Size
from simulator.lookup import function
from simulator.order import Order

ALIASES = {"1f1b": "one_f_one_b"}
"""Names of orders that cannot be a function's."""


class Naive(Section):
    """One main GPU hands out the batch, gathers the gradients and sends back what comes of them.

    *update* ``everywhere``: it sends back the averaged gradient; ``main``: it alone updates, and sends the model.
    """

    method: Literal["naive"]
    update: Literal["everywhere", "main"] = "everywhere"


class ParameterServer(Section):
    """Hosts keep the parameters, sharded over *servers* of them."""

    method: Literal["parameter_server"]
    servers: Count = 1


class DistributedDataParallel(Section):
    """Gradients are all-reduced in buckets of *bucket* bytes, while the backward pass goes on if *overlap*.

    Unless *bucket* is given the first is of 1 MiB and the others of 25 MiB, as in torch. *no_sync*: micro-batches but
    the last communicate nothing.
    """

    method: Literal["ddp"]
    overlap: Flag = True
    bucket: Size | None = None
    first_bucket: Size | None = None
    no_sync: Flag = True


class Zero(Section):
    """ZeRO of that *stage*: 1 shards optimizer states, 2 gradients too, 3 parameters too, 0 nothing.

    Gradients are reduced in buckets of *bucket* bytes (unless given, DeepSpeed's 5e8 elements), while the backward pass
    goes on if *overlap*.
    """

    method: Literal["zero"]
    stage: Literal[0, 1, 2, 3] = 1
    overlap: Flag = True
    bucket: Size | None = None


class FullyShardedDataParallel(Section):
    """Everything is sharded, and parameters are gathered layer by layer.

    *reshard*: given up between forward and backward pass; *prefetch*: layers gathered ahead of the computation;
    *hybrid*: shards inside groups of so many ranks, replicas across them.
    """

    method: Literal["fsdp"]
    overlap: Flag = True
    reshard: Flag = True
    prefetch: Index = 1
    hybrid: Count | None = None


def takes_virtual_stages(schedule: str) -> bool:
    """Whether the order of that name has virtual stages."""
    order = function("workloads.pipelines", ALIASES.get(schedule, schedule))
    return "virtual_stages" in signature(order).parameters


def _with_method(value: Any) -> Any:
    return {"method": "ddp", **value} if isinstance(value, dict) and "method" not in value else value


DataParallelism = Annotated[
    Naive | ParameterServer | DistributedDataParallel | Zero | FullyShardedDataParallel,
    Field(discriminator="method"),
]


class Parallelism(Section):
    """Degrees by axis; *dp* ``auto`` is GPUs / (tp * pp). *placement* maps ranks to GPUs.

    *virtual_stages* are those of a pipeline rank, for orders that have them. Without a *layout* every stage has equally
    many layers. *tp_overlap* is the part of the tensor-parallel exchanges beside their products. *optimizer_sync*: the
    optimizer waits for the norm of all gradients.
    """

    tp: Count = 1
    sequence_parallel: Flag = False
    tp_overlap: Flag | Fraction = False
    pp: Count = 1
    schedule: str = "1f1b"
    virtual_stages: Count | None = None
    layout: Literal["balanced", "embedding_as_layer"] | list[Index] | None = None
    optimizer_sync: Flag = True
    dp: Count | Literal["auto"] = "auto"
    data: Annotated[DataParallelism, BeforeValidator(_with_method)] = DistributedDataParallel(method="ddp")
    rank_order: list[Literal["tp", "dp", "pp"]] = Field(default=["tp", "dp", "pp"])
    placement: Literal["packed", "round_robin"] | list[Index] = "packed"

    @model_validator(mode="after")
    def _choices(self) -> Parallelism:
        """Keys of a choice that is not taken, and choices that exclude each other."""
        if self.tp == 1:
            for key in ("sequence_parallel", "tp_overlap"):
                if getattr(self, key):
                    raise Fault(key, "belongs to tensor parallelism, but tp is 1")
        if self.data.method in ("naive", "parameter_server"):
            for key in ("tp", "pp"):
                if getattr(self, key) != 1:
                    raise Fault(key, f"must be 1: {self.data.method} keeps the whole model on every GPU")
        if self.virtual_stages is not None and not takes_virtual_stages(self.schedule):
            raise Fault("virtual_stages", f"belongs to an order that has them; {self.schedule} has not")
        return self

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, name: str) -> str:
        return known(name, "workloads.pipelines", tuple(ALIASES))

    @property
    def order(self) -> Callable[..., Order]:
        """The function that makes the pipeline order."""
        return function("workloads.pipelines", ALIASES.get(self.schedule, self.schedule))

    @field_validator("rank_order")
    @classmethod
    def _permutation(cls, order: list[str]) -> list[str]:
        if sorted(order) != ["dp", "pp", "tp"]:
            raise ValueError(f"must name each of tp, dp and pp once, not {', '.join(order) or 'nothing'}")
        return order

    @field_validator("placement")
    @classmethod
    def _distinct(cls, placement: str | list[int]) -> str | list[int]:
        if isinstance(placement, list):
            for place, gpu in enumerate(placement):
                if gpu in placement[:place]:
                    raise ValueError(f"GPU {gpu} stands twice; every rank needs a GPU of its own")
        return placement
