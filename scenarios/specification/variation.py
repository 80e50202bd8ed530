"""The variation section: how computing times differ between GPUs, ops and steps; pauses; links that degrade."""

from functools import lru_cache
from math import inf, isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from clustersim.simulator.engine.pricing import Distribution
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import read_rows
from clustersim.simulator.reading.lookup import UnknownName, data_file, names
from clustersim.simulator.reading.quantities import (
    BelongsTo,
    Count,
    Duration,
    Fraction,
    Index,
    Ratio,
    Section,
    Time,
    number,
)
from clustersim.simulator.reading.validation import Fault, validated
from clustersim.simulator.reading.yaml_and_json import read

PRESETS = "clustersim.scenarios.variations"

Slowdown = Annotated[float, BeforeValidator(number(1.0, 1e6)), WithJsonSchema({"type": "number", "minimum": 1})]
Deviation = Annotated[float, BeforeValidator(number(0.0, 10.0)), WithJsonSchema({"type": "number", "minimum": 0})]

MOST_NORMAL = 0.3
"""Coefficient of variation of a normal distribution at most: beyond, many draws would not be positive."""

LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3
"""Factors of an empirical distribution; others are faults of the file."""

COLUMN = "ratio"


class Straggler(Section):
    """A rank that computes slowly."""

    rank: Index
    """The rank that is slow, from 0. Required."""
    slowdown: Slowdown
    """Factor on the time of its computation, at least 1. Required."""


OF_EMPIRICAL = BelongsTo("distribution", "empirical")

OF_OTHERS = BelongsTo(
    "distribution", "lognormal", "gamma", "normal", to="the other distributions; an empirical one has its own"
)


class DistributionSection(Section):
    """A distribution of factors on computing times, with mean 1 unless it is empirical."""

    distribution: Literal["lognormal", "gamma", "normal", "empirical"] = "lognormal"
    """Its form; empirical takes quantiles or a file."""
    variation: Annotated[Deviation, OF_OTHERS] = 0.0
    """Coefficient of variation; not of an empirical one."""
    quantiles: Annotated[list[tuple[float, float]], OF_EMPIRICAL] = Field(default_factory=list)
    """(probability, factor), both ascending, from 0 to 1; draws between them are interpolated."""
    file: Annotated[str, OF_EMPIRICAL] = ""
    """CSV file with a column ratio: measured times over their median, such as those that explain writes."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.distribution != "empirical":
            if self.distribution == "normal" and self.variation > MOST_NORMAL:
                raise Fault(
                    "variation", f"must be at most {MOST_NORMAL:g} of a normal distribution: times are positive"
                )
            return self
        if bool(self.quantiles) == bool(self.file):
            raise Fault("quantiles", "give quantiles or a file of an empirical distribution")
        _check(self.quantiles)
        return self

    def build(self) -> Distribution:
        """Return the distribution. Raises `SimulatorError` for a wrong file."""
        quantiles = _measured(self.file) if self.file else tuple((p, f) for p, f in self.quantiles)
        return Distribution(self.distribution, self.variation, quantiles)


def _check(quantiles: list[tuple[float, float]]) -> None:
    """Raise `Fault` unless probabilities go from 0 to 1 and both numbers ascend."""
    if not quantiles:
        return
    probabilities, factors = zip(*quantiles, strict=True)
    if probabilities[0] != 0 or probabilities[-1] != 1 or list(probabilities) != sorted(set(probabilities)):
        raise Fault("quantiles", "must have probabilities that ascend from 0 to 1, e.g. [[0, 0.9], [0.5, 1], [1, 1.2]]")
    if list(factors) != sorted(factors) or not LEAST_FACTOR <= factors[0] <= factors[-1] <= MOST_FACTOR:
        raise Fault("quantiles", f"must have factors that ascend, from {LEAST_FACTOR:g} to {MOST_FACTOR:g}")


@lru_cache
def _measured(path: str) -> tuple[tuple[float, float], ...]:
    """Return the quantiles of the column `COLUMN` of the table at *path*."""
    rows = list(read_rows(path))
    header = rows[0].cells if rows else []
    if COLUMN not in header:
        raise SimulatorError(f'{path}: needs a column "{COLUMN}": measured times over their median')
    place, found = header.index(COLUMN), []
    for row in rows[1:]:
        text = row.cells[place] if place < len(row.cells) else ""
        try:
            ratio = float(text)
        except ValueError:
            ratio = inf
        if not isfinite(ratio) or not LEAST_FACTOR <= ratio <= MOST_FACTOR:
            raise SimulatorError(
                f"{path}:{row.line}: {COLUMN} must be from {LEAST_FACTOR:g} to {MOST_FACTOR:g}: {text}"
            )
        found.append(ratio)
    if len(found) < 2:
        raise SimulatorError(f"{path}: needs at least two rows")
    return tuple((place / (len(found) - 1), ratio) for place, ratio in enumerate(sorted(found)))


class SpellsSection(Section):
    """Times in which a rank is slow for a while."""

    probability: Fraction
    """Probability that one begins, for each rank and step. Required."""
    steps: Ratio
    """Steps that one lasts on average, at least 1. Required."""
    slowdown: Slowdown
    """Factor on the computing times meanwhile. Required."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.steps < 1:
            raise Fault("steps", f"must be at least 1, not {self.steps:g}")
        return self


class PausesSection(Section):
    """Pauses of the host: garbage collection, checkpoints, loading of data."""

    probability: Fraction
    """Probability of a pause, for each rank and step. Required."""
    duration: Duration
    """Time that a pause takes before a computation. Required."""


def _two(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(end, str) for end in value):
        raise ValueError("must be two vertices, e.g. [gpu 17, nic 17]")
    return tuple(value)


class LinkChange(Section):
    """A link that has a part of its bandwidth for a while, in both directions; or that flaps."""

    link: Annotated[tuple[str, str], BeforeValidator(_two)]
    """Two vertices with a link, e.g. [gpu 17, nic 17]; show topology prints names. Required."""
    bandwidth: Ratio
    """Factor on its bandwidth meanwhile. Required."""
    begin: Time = 0.0
    """When it begins, since the begin of the simulation."""
    duration: Duration
    """How long it lasts. Required."""
    times: Count = 1
    """How often it happens."""
    every: Duration | None = None
    """Time from one begin to the next; required if it happens more than once."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.times > 1 and (self.every is None or self.every <= self.duration):
            raise Fault("every", "must be longer than duration if it happens more than once")
        if self.times == 1 and self.every is not None:
            raise Fault("every", "needs times: how often it happens")
        return self


class VariationSection(Section):
    """How times vary. jitter, spread and stragglers of simulation are short forms of op, gpu and stragglers."""

    preset: str = ""
    """A measured variation, a file of scenarios/variations; keys beside it override it."""
    op: DistributionSection | None = None
    """Factor of each computation."""
    gpu: DistributionSection | None = None
    """Factor that each GPU keeps."""
    step: DistributionSection | None = None
    """Factor of each step, the same on all ranks."""
    spells: SpellsSection | None = None
    """Ranks that are slow for a while."""
    pauses: PausesSection | None = None
    """Pauses of the hosts."""
    stragglers: list[Straggler] = Field(default_factory=list)
    """Ranks that compute more slowly."""
    links: list[LinkChange] = Field(default_factory=list)
    """Links that degrade or flap."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        preset = data.get("preset") if isinstance(data, dict) else None
        if not preset:
            return data
        try:
            found = read(data_file(PRESETS, str(preset)))
        except UnknownName:
            raise Fault("preset", f'unknown variation "{preset}"; there are: {", ".join(names(PRESETS))}') from None
        return {**validated(Document(found.data, found.positions), VariationSection).model_dump(), **data}

    @property
    def random(self) -> bool:
        """True if times depend on the seed."""
        return any((self.op, self.gpu, self.step, self.spells, self.pauses))
