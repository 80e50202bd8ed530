"""The queue section: jobs that arrive, wait for nodes and run, and the scheduler of the cluster."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from clustersim.scenarios.specification.variation import DistributionSection
from clustersim.simulator.reading.plain_text import written
from clustersim.simulator.reading.quantities import Count, Duration, Index, Ratio, Section
from clustersim.simulator.reading.units import UNITS, parse
from clustersim.simulator.reading.validation import Fault

Policy = Literal["fifo", "backfill"]
"""Orders in which jobs start; `scenarios.queue.simulation` has them."""

QueuePlacement = Literal["packed", "scattered", "by_leaf", "one_leaf"]
"""Which free nodes a job gets; `scenarios.queue.fabric` has them."""

Contention = Literal["pairs", "together", "none"]
"""How the slowdown of jobs that share links is found; `scenarios.run.queue` has the ways."""


def _per_second(value: Any) -> float:
    """Return a number of arrivals by unit of time in 1/s.

    >>> _per_second("12/h"), _per_second("3 / min")
    (0.0033333333333333335, 0.05)
    """
    example = 'a number by unit of time, e.g. "12/h"'
    number, slash, unit = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not slash or unit.strip() not in UNITS["time"]:
        raise ValueError(f"must be {example}, not {written(value)}")
    try:
        count = float(number)
    except ValueError:
        raise ValueError(f"must be {example}, not {written(value)}") from None
    if not 1e-9 <= count <= 1e9:
        raise ValueError(f"must be from 1e-9 to 1e9 by unit of time, not {written(value)}")
    return count / parse(f"1 {unit.strip()}", "time")


ArrivalRate = Annotated[
    float,
    BeforeValidator(_per_second),
    WithJsonSchema({"type": "string", "description": 'arrivals by unit of time, e.g. "12/h"'}),
]
"""Arrivals, 1/s."""


class QueuedJob(Section):
    """A kind of job that arrives at random: a job of jobs with its steps, or nodes for a given time."""

    job: str = ""
    """The name of a job of jobs. Required unless duration stands."""
    steps: Count | None = None
    """Its training steps, on the mean. Required beside job."""
    duration: Duration | None = None
    """How long it runs, on the mean, in place of job: it uses no network."""
    nodes: Count | None = None
    """How many nodes it has; by default those of its job. Required beside duration."""
    weight: Ratio = 1.0
    """Its share of the arrivals, relative to the weights of the others."""
    variation: DistributionSection | None = None
    """The distribution of a factor on its steps or its duration, with mean 1; gamma with variation 1 is the exponential
    distribution. By default all are equal."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.job) == (self.duration is not None):
            raise Fault("job", "give a job of jobs with its steps, or a duration with its nodes; one of both")
        if self.job and self.steps is None:
            raise Fault("steps", "is required beside job: how many training steps it runs")
        if not self.job and self.steps is not None:
            raise Fault("steps", "stands beside duration, which says how long it runs")
        if not self.job and self.nodes is None:
            raise Fault("nodes", "is required beside duration: how many nodes it has")
        return self


class PoissonArrivals(Section):
    """Jobs that arrive at random: the times between arrivals are exponentially distributed."""

    poisson: ArrivalRate
    """Arrivals by unit of time, e.g. 12/h. Required."""
    jobs: Count
    """How many jobs arrive. Required."""
    seed: Index = 0
    """Seed of all draws."""
    mix: list[QueuedJob] = Field(min_length=1)
    """The kinds of jobs that arrive. Required."""


class Queue(Section):
    """Jobs that arrive, wait for nodes and run; every node is held by one job at a time."""

    arrivals: Annotated[
        Annotated[str, Tag("file")] | Annotated[PoissonArrivals, Tag("poisson")],
        Discriminator(lambda value: "poisson" if isinstance(value, dict | BaseModel) else "file"),
    ]
    """A CSV file with a row for each job (columns arrival; job and steps, or duration and nodes or gpus; name,
    time_limit), or arrivals at random: {poisson: 12/h, jobs: 1000, mix: [...]}. Required."""
    policy: Policy = "fifo"
    """fifo: a job that does not fit holds up all behind it; backfill (EASY): others may start before it as long as that
    does not delay it."""
    placement: QueuePlacement = "by_leaf"
    """Which free nodes a job gets. packed: the first; scattered: one below each leaf in turn; by_leaf: the leaf with
    the fewest free nodes that holds it (best fit), else as few leaves as possible; one_leaf: a job no larger than a
    leaf waits until one leaf holds it."""
    contention: Contention = "pairs"
    """How jobs that share links slow each other down. pairs: each two are simulated, and what several others add is
    added up; together: all that share links are simulated together; none: each runs as alone."""
    estimate: Ratio = 1.0
    """The time limit that users give, over the time that the job takes alone; backfill plans with it. A time_limit of
    the CSV file stands before it. A job that runs for longer is not stopped."""
    horizon: Duration | None = None
    """When the simulation ends; by default when all jobs have ended."""
