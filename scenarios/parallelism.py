"""The parallelism section says how the model is spread over the ranks, and where the ranks live."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from scenarios.names import known
from simulator.document import Count, Fault, Flag, Fraction, Index, Section, Size


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
    """Optimizer states, gradients and parameters sharded; read, but not simulated in this version."""

    method: Literal["zero"]
    stage: Literal[0, 1, 2, 3] = 1
    overlap: Flag = True
    bucket: Size | None = None


class FullyShardedDataParallel(Section):
    """Parameters gathered layer by layer; read, but not simulated in this version."""

    method: Literal["fsdp"]
    reshard: Flag = True
    prefetch: Flag = True
    hybrid: Count | None = None


def _with_method(value: Any) -> Any:
    return {"method": "ddp", **value} if isinstance(value, dict) and "method" not in value else value


DataParallelism = Annotated[
    Naive | ParameterServer | DistributedDataParallel | Zero | FullyShardedDataParallel,
    Field(discriminator="method"),
]


class Parallelism(Section):
    """Degrees by axis; *dp* ``auto`` is GPUs / (tp * pp). *placement* maps ranks to GPUs."""

    tp: Count = 1
    sequence_parallel: Flag = False
    tp_overlap: Flag | Fraction = False
    pp: Count = 1
    schedule: str = "1f1b"
    virtual_stages: Count = 1
    layout: Literal["balanced", "embedding_as_layer"] | list[Count] = "balanced"
    dp: Count | Literal["auto"] = "auto"
    data: Annotated[DataParallelism, BeforeValidator(_with_method)] = DistributedDataParallel(method="ddp")
    rank_order: list[Literal["tp", "dp", "pp"]] = Field(default=["tp", "dp", "pp"])
    placement: Literal["packed", "round_robin"] | list[Index] = "packed"

    @model_validator(mode="after")
    def _simulated(self) -> Parallelism:
        only: dict[str, Any] = {"tp": 1, "pp": 1, "virtual_stages": 1, "sequence_parallel": False, "tp_overlap": False}
        for key, value in only.items():
            given = getattr(self, key)
            if given != value:
                shown, needed = (str(v).lower() if isinstance(v, bool) else v for v in (given, value))
                raise Fault(key, f"{shown} is not simulated in this version; only {needed} is")
        if self.data.method in ("zero", "fsdp"):
            message = f"{self.data.method} is not simulated in this version; naive, parameter_server and ddp are"
            raise Fault(("data", "method"), message)
        if isinstance(self.layout, list):
            raise Fault("layout", "layers by virtual stage are not simulated in this version; only balanced is")
        return self

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, name: str) -> str:
        return known(name, "workloads.pipelines", ("1f1b",))

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
