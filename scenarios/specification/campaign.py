"""The campaign section: a whole training run with its checkpoints, failures, spare nodes and maintenance."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from clustersim.scenarios.specification.sections import StorageEntry
from clustersim.simulator.reading.quantities import (
    Count,
    Duration,
    Flag,
    Fraction,
    Index,
    Quantity,
    Section,
    Size,
    Time,
)
from clustersim.simulator.reading.units import EXAMPLES, parse
from clustersim.simulator.reading.validation import Fault

RULES = ("optimal", "daly", "young")
"""Words for the interval between checkpoints; `scenarios.campaign.job` has their formulas."""


def _interval(value: Any) -> float | str:
    """Return the seconds between checkpoints, or one of `RULES`."""
    if value in RULES:
        return str(value)
    try:
        seconds = parse(value, "time")
    except ValueError as error:
        raise ValueError(f"{error}, or one of {', '.join(RULES)}") from None
    if seconds <= 0:
        raise ValueError(f"must be above 0, not {value}")
    return seconds


Interval = Annotated[
    float | str,
    BeforeValidator(_interval),
    WithJsonSchema({"type": "string", "description": f"optimal, daly, young, or a time, e.g. {EXAMPLES['time']}"}),
]
"""s, or one of `RULES`."""


def _some(tokens: float) -> float:
    if not tokens:
        raise ValueError("must be above 0, not 0")
    return tokens


Some = Annotated[Quantity, AfterValidator(_some)]
"""Tokens, above 0."""


class CheckpointPolicy(Section):
    """When checkpoints are written, and how long that takes."""

    every: Interval = "optimal"
    """Time of training between checkpoints, rounded to whole steps. optimal has the least expected time, daly is Daly's
    higher-order estimate, young is Young's estimate."""
    storage: StorageEntry | None = None
    """Bandwidth of the storage, or its nodes. Required, unless write stands."""
    size: Size | None = None
    """Bytes of a checkpoint; by default parameters and optimizer states, each once."""
    write: Time | None = None
    """Time to write a checkpoint, in place of size / bandwidth."""
    load: Time | None = None
    """Time to load a checkpoint after a failure; by default that of writing one."""
    asynchronous: Flag = False
    """Training goes on while the copy in host memory is written; only the copy itself, over the host's link, stops
    it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.storage is None and self.write is None:
            raise Fault("storage", "is required: a bandwidth such as 200 GB/s (or write: the time of one checkpoint)")
        if self.write is not None and self.size is not None:
            raise Fault("size", "stands beside write, which is the time of a checkpoint of any size")
        return self


class Failures(Section):
    """How often nodes fail, and what a failure costs."""

    mtbf_per_gpu: Duration | None = None
    """Mean time between failures of one GPU and its share of the node, e.g. 50000 h. In place of mtbf_per_node."""
    mtbf_per_node: Duration | None = None
    """Mean time between failures of one node, e.g. 5 years."""
    trace: str = ""
    """CSV file with a column hours: the times of failures since the begin of the campaign. In place of a mean time."""
    detect: Time = 0.0
    """Time from a failure until it is noticed, e.g. the timeout of a collective."""
    replace: Time = 0.0
    """Time to put a spare node in the place of a broken one."""
    restart: Time = 0.0
    """Time to start the job again, without the loading of the checkpoint."""
    lost_work: Time | None = None
    """The most work that a failure loses, where states are also kept in the memory of other nodes; by default all work
    since the last checkpoint."""
    spares: Index | None = None
    """Spare nodes beyond those of the job; by default there is always one. Needs repair."""
    repair: Duration | None = None
    """Mean time, exponentially distributed, until a broken node is back as a spare."""
    broken: Fraction = 1.0
    """Share of the failures after which the node needs repair; after others it goes on."""
    elastic: Flag = False
    """Without a spare, train with fewer replicas in place of waiting for one."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [key for key in ("mtbf_per_gpu", "mtbf_per_node", "trace") if getattr(self, key)]
        if len(given) != 1:
            told = f"{given[0]} stands already" if given else "is required (or mtbf_per_gpu, or trace)"
            raise Fault(given[1] if given else "mtbf_per_node", told)
        if self.spares is not None and self.repair is None:
            raise Fault("spares", "needs repair: the mean time until a broken node is back, e.g. repair: 2 days")
        if self.spares is None:
            for key in ("repair", "elastic"):
                if getattr(self, key):
                    raise Fault(key, "needs spares: the number of spare nodes; without it there is always one")
        return self


class TrainingPhase(Section):
    """A phase of the campaign with a batch or a sequence length of its own."""

    tokens: Some
    """Tokens that are trained in this phase. Required."""
    global_batch_size: Count | None = None
    """Samples of a step; by default that of training."""
    seq_length: Count | None = None
    """Tokens of a sample; by default that of the model."""


class Maintenance(Section):
    """Planned stops of the whole job; a checkpoint is written before."""

    every: Duration
    """Time between the begins of two stops. Required."""
    duration: Duration
    """Time of a stop, without the restart. Required."""


class Campaign(Section):
    """A whole training run on machines that fail."""

    tokens: Some | None = None
    """Tokens of the campaign; by default training.tokens, or samples."""
    schedule: list[TrainingPhase] = Field(default_factory=list)
    """Phases before the rest of the campaign, such as the warm-up of the batch size."""
    checkpoint: CheckpointPolicy | None = None
    """When checkpoints are written; by default never."""
    failures: Failures | None = None
    """How often nodes fail; by default never."""
    maintenance: Maintenance | None = None
    """Planned stops; by default none."""
    repeats: Count = 100
    """Samples of the campaign, with seeds in turn."""

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if self.maintenance is not None and self.checkpoint is None:
            raise Fault("maintenance", "needs checkpoint: what is not written is lost at a stop")
        if self.maintenance is not None and self.maintenance.duration >= self.maintenance.every:
            raise Fault(("maintenance", "duration"), "must be shorter than the time between stops, every")
        return self

    @model_validator(mode="after")
    def _optimum(self) -> Self:
        if self.checkpoint is not None and isinstance(self.checkpoint.every, str):
            failures = self.failures
            if failures is None or failures.trace:
                why = "there are no failures" if failures is None else "a trace has no mean time between failures"
                raise Fault(
                    ("checkpoint", "every"), f"{self.checkpoint.every} needs a mean time, but {why}; give e.g. 1 h"
                )
        return self
