"""The other sections of a scenario: network, simulation, cost, expectations, and the collective to measure."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from simulator.document import Count, Fault, Flag, Index, Number, Power, Section, Size
from simulator.document.names import known
from simulator.document.quantities import number, written
from simulator.document.validation import listed, near
from simulator.engine.choice import numba_fault
from simulator.lookup import find, is_path, names
from simulator.network.transport.calibration import LIBRARIES, loaded
from simulator.schedule import COLLECTIVES
from simulator.units import UNITS, parse

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"]

Slowdown = Annotated[float, BeforeValidator(number(1.0, 1e6)), WithJsonSchema({"type": "number", "minimum": 1})]
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


class Network(Section):
    """How communication is simulated; *algorithms* by collective, ``all_reduce``, or by axis, ``dp.all_reduce``."""

    fidelity: Literal["alpha_beta", "flow", "chunk"] = "flow"
    transport: str = "nccl"
    algorithms: dict[str, str] = Field(default_factory=dict)

    @field_validator("transport")
    @classmethod
    def _transport(cls, name: str) -> str:
        name = known(name, "simulator.network.transport", only=LIBRARIES)
        if is_path(name):
            loaded(name)  # reports faults of the file before anything runs
        return name

    @field_validator("algorithms")
    @classmethod
    def _algorithms(cls, algorithms: dict[str, str]) -> dict[str, str]:
        plain = {}
        for key, given in algorithms.items():
            kind = key.rpartition(".")[2]
            if kind not in COLLECTIVES:
                raise Fault(key, f"is no collective; there are {', '.join(COLLECTIVES)}", near(kind, COLLECTIVES))
            try:
                name = plain[key] = known(given, "simulator.network.collectives", ("auto",))
            except Fault as fault:
                raise Fault(key, fault.message, fault.hint) from None
            if name != "auto" and not hasattr(find("simulator.network.collectives", name), kind):
                able = [
                    one
                    for one in names("simulator.network.collectives")
                    if hasattr(find("simulator.network.collectives", one), kind)
                ]
                raise Fault(key, f"{name} has no {kind}; it must be {listed(['auto', *able])}")
        return plain


class Straggler(Section):
    """*rank* computes *slowdown* times as long."""

    rank: Index
    slowdown: Slowdown


class Simulation(Section):
    """How the scenario is simulated.

    *engine*: ``auto`` takes ``simpy`` for small simulations and ``compiled`` for large ones. *fold*: equal ranks are
    simulated once. *jitter* is the coefficient of variation of the duration of each computation, *spread* that of a
    factor which each GPU keeps; both are drawn from *seed*. *repeats* simulates with seeds from *seed* on, one each.
    """

    engine: Literal["auto", "simpy", "compiled"] = "auto"
    fold: Flag = True
    seed: Index = 0
    jitter: Variation = 0.0
    spread: Variation = 0.0
    repeats: Count = 1
    stragglers: list[Straggler] = Field(default_factory=list)

    @field_validator("engine")
    @classmethod
    def _installed(cls, engine: str) -> str:
        if engine == "compiled" and numba_fault():
            raise ValueError(numba_fault())
        return engine

    @model_validator(mode="after")
    def _varied(self) -> Simulation:
        if self.repeats > 1 and not (self.jitter or self.spread):
            raise Fault("repeats", "all runs would be equal; give simulation.jitter or simulation.spread too")
        return self

    @field_validator("stragglers")
    @classmethod
    def _distinct(cls, stragglers: list[Straggler]) -> list[Straggler]:
        ranks = [straggler.rank for straggler in stragglers]
        for place, rank in enumerate(ranks):
            if rank in ranks[:place]:
                raise ValueError(f"rank {rank} stands twice")
        return stragglers


class Cost(Section):
    """Currency per GPU-hour, W per GPU (that of its data sheet unless given), PUE, kg of CO2 per kWh."""

    gpu_hour: Number = 0.0
    gpu_power: Power | None = None
    pue: Slowdown = 1.0
    carbon: Number = 0.0


class Expectation(Section):
    """The *value* of a key of the result, within a relative *tolerance*, and where it is from.

    *relative_to* names the variant whose value it is a multiple of. *fitted*: cost parameters were fitted to it, so
    that to meet it proves little.
    """

    value: Value
    tolerance: Variation = 0.01
    source: str = ""
    relative_to: str = ""
    fitted: Flag = False


class CollectiveBenchmark(Section):
    """One collective in place of a training step: over all GPUs or *ranks* of them, of one or several sizes."""

    kind: Kind
    size: Sizes
    ranks: Count | None = None
    root: Index = 0
