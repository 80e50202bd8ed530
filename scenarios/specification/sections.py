"""The smaller sections of a scenario: simulation, expectations, the collective to measure, the input pipeline, and the
traces that stand in place of a model.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from clustersim.simulator.engine_choice import numba_fault
from clustersim.simulator.reading.plain_text import written
from clustersim.simulator.reading.quantities import Bandwidth, Count, Flag, Index, Section, Size, Time, number
from clustersim.simulator.reading.units import UNITS, parse
from clustersim.simulator.reading.validation import Fault, deferred

if TYPE_CHECKING:
    from clustersim.scenarios.specification.variation import Straggler, VariationSection
else:
    VARIATION = f"{__name__.rpartition('.')[0]}.variation"
    Straggler = deferred(VARIATION, "Straggler")
    VariationSection = deferred(VARIATION, "VariationSection")

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"]

Variation = Annotated[float, BeforeValidator(number(0.0, 10.0)), WithJsonSchema({"type": "number", "minimum": 0})]


def _measured(value: Any) -> float:
    """Return a number as it is, and a quantity of any dimension in SI units."""
    if not isinstance(value, str):
        return number(-1e300, 1e300)(value)
    for dimension in UNITS:
        with suppress(ValueError):
            return parse(value, dimension)
    raise ValueError(f'must be a number, or one with its unit, e.g. "31.5 s" or "52 %", not {written(value)}')


Value = Annotated[float, BeforeValidator(_measured), WithJsonSchema({"type": ["number", "string"]})]

Sizes = Annotated[
    list[Size],
    Field(min_length=1),
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""Bytes: one size, or a list of them."""


class Simulation(Section):
    """How the scenario is simulated."""

    engine: Literal["auto", "simpy", "compiled"] = "auto"
    """simpy is the readable reference, compiled is fast and needs numba; auto takes simpy for small simulations."""
    fold: Flag = True
    """Simulate equal ranks once; the result is the same."""
    seed: Index = 0
    """Seed of the random variation."""
    jitter: Variation = 0.0
    """Coefficient of variation of the duration of each computation, e.g. 0.02."""
    spread: Variation = 0.0
    """Coefficient of variation of a factor on the speed that each GPU keeps, e.g. 0.01."""
    repeats: Count = 1
    """Simulations with the seeds from seed on, one each; needs jitter or spread."""
    stragglers: list[Straggler] = Field(default_factory=list)
    """Ranks that compute more slowly."""
    variation: VariationSection | None = None
    """Distributions, slow times, pauses and links that degrade, in place of jitter, spread and stragglers."""

    @field_validator("engine")
    @classmethod
    def _installed(cls, engine: str) -> str:
        if engine == "compiled" and numba_fault():
            raise ValueError(numba_fault())
        return engine

    @model_validator(mode="after")
    def _varied(self) -> Self:
        for key in ("jitter", "spread", "stragglers"):
            if self.variation is not None and getattr(self, key):
                long = {"jitter": "op", "spread": "gpu"}.get(key, key)
                raise Fault(key, f"stands beside variation; give variation.{long} in place of it")
        if self.repeats > 1 and not (self.jitter or self.spread or (self.variation and self.variation.random)):
            raise Fault("repeats", "all runs would be equal; give simulation.jitter or simulation.spread too")
        return self

    @property
    def slow_ranks(self) -> list[Straggler]:
        """The stragglers, in the short form or the long one."""
        return self.variation.stragglers if self.variation else self.stragglers

    @field_validator("stragglers")
    @classmethod
    def _once(cls, stragglers: list[Straggler]) -> list[Straggler]:
        ranks = [straggler.rank for straggler in stragglers]
        for place, rank in enumerate(ranks):
            if rank in ranks[:place]:
                raise ValueError(f"rank {rank} stands twice")
        return stragglers


class Expectation(Section):
    """A value that the result is expected to have, and where it is from."""

    value: Value
    """The expected value in SI units, or with its unit, e.g. 31.5 s or 52 %. Required."""
    tolerance: Variation = 0.01
    """Relative deviation that is accepted, e.g. 0.1 for 10 %."""
    source: str = ""
    """Where the value is from."""
    relative_to: str = ""
    """The variant whose value this one is a multiple of."""
    fitted: Flag = False
    """True if cost parameters were fitted to this value, so that meeting it proves little."""


class CollectiveBenchmark(Section):
    """One collective in place of a training step: over all GPUs or *ranks* of them, of one or several sizes."""

    kind: Kind
    """The collective. Required."""
    size: Sizes
    """Bytes of the full vector, as nccl-tests counts them, e.g. 100 MB; or a list of sizes. Required."""
    ranks: Count | None = None
    """The number of ranks, on the first GPUs; by default all GPUs."""
    root: Index = 0
    """The root of a broadcast, reduce, gather or scatter."""
    driver: Literal["processes", "one_process", "torch"] = "processes"
    """What runs it: a benchmark with a process for each GPU (processes); one for the GPUs of each server, which
    launches on one after the other (one_process), as nccl-tests -g 8 does; or torch.distributed (torch), as in a
    training step."""


class Storage(Section):
    """The storage that checkpoints are written to and samples are read from."""

    bandwidth: Bandwidth
    """Bytes/s of one storage node in each direction. Required."""
    nodes: Count = 1
    """Storage nodes; all of them serve a read or a write at once."""

    @property
    def aggregate(self) -> float:
        """Bytes/s of all storage nodes together."""
        return self.bandwidth * self.nodes


def _storage(value: Any) -> Any:
    """Return a bandwidth as the storage that has it."""
    if isinstance(value, dict | Storage):
        return value
    if not isinstance(value, str):
        raise ValueError(f'must be a bandwidth, e.g. "200 GB/s", or a mapping with bandwidth, not {written(value)}')
    return {"bandwidth": value}


class _OrBandwidth:
    """The JSON schema of a mapping that may also be written as a bandwidth."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(core), {"type": "string", "description": "a bandwidth, e.g. 200 GB/s"}]}


StorageEntry = Annotated[Storage, BeforeValidator(_storage), _OrBandwidth()]
"""Storage, or its bandwidth alone."""


class InputPipeline(Section):
    """The reading and preparing of samples, beside the step; a step waits for what comes too late."""

    sample: Size
    """Bytes that are read for a sample. Required."""
    workers: Count = 1
    """Processes that prepare samples for each replica, beside the GPUs."""
    prepare: Time = 0.0
    """Time of one process to decode and augment a sample."""
    storage: StorageEntry | None = None
    """Where samples are read from; by default campaign.checkpoint.storage, shared with checkpoints. Without either,
    reading takes no time."""


Traces = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class TraceWorkload(Section):
    """A recorded step that is replayed on the cluster."""

    trace: Traces
    """Traces of torch.profiler (.json, .json.gz) or of Chakra (.et), one a rank, or folders of them. Required."""
    collectives: Literal["simulated", "measured"] = "simulated"
    """simulated: on the cluster; measured: each takes what it took in the trace, for a replay on its own cluster."""
    gpu: str = "auto"
    """The GPU on which the trace was recorded, a name of clustersim list gpus; auto: by its name in the trace."""
    dp_group: str = ""
    """The process group that holds the data-parallel replicas, if its name in the trace does not tell."""
