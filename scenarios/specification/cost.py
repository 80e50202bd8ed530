"""The cost section: prices, power by state, and the carbon intensity of the electricity."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from scenarios.cost.regions import regions
from simulator.document import Fault, Number, Power, Section
from simulator.document.quantities import number
from simulator.document.validation import near

Overhead = Annotated[float, BeforeValidator(number(1.0, 1e6)), WithJsonSchema({"type": "number", "minimum": 1})]


def _intensity(value: Any) -> float | str:
    """Return a number of kg per kWh, or the name of a region of `regions`."""
    if not isinstance(value, str):
        return number(0.0, 1e30)(value)
    if value not in regions():
        raise Fault((), f'unknown region "{value}"; there are {", ".join(regions())}', near(value, regions()))
    return value


Carbon = Annotated[
    float | str,
    BeforeValidator(_intensity),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"enum": list(regions())}]}),
]


class Cost(Section):
    """What a training run costs, in money, energy and carbon."""

    gpu_hour: Number = 0.0
    """Price of a GPU for an hour on demand, in any currency."""
    reserved_gpu_hour: Number | None = None
    """Price of a GPU for an hour if it is reserved for long; gives a second cost."""
    gpu_power: Power | None = None
    """Power of a GPU under load; by default that of its data sheet."""
    communicating_power: Power | None = None
    """Power of a GPU while it communicates and computes nothing; by default that under load."""
    idle_power: Power | None = None
    """Power of a GPU while it waits, in bubbles and while a campaign stands still; by default that under load."""
    node_power: Power | None = None
    """Power of a node without its GPUs: processors, memory, NICs, fans; by default not counted."""
    pue: Overhead = 1.0
    """Power usage effectiveness of the data centre: its power over that of the computers, at least 1."""
    carbon: Carbon = 0.0
    """Carbon intensity of the electricity: kg of CO2 per kWh, or a region of scenarios/cost/carbon.csv."""

    @property
    def intensity(self) -> float:
        """kg of CO2 per kWh."""
        return regions()[self.carbon] if isinstance(self.carbon, str) else self.carbon
