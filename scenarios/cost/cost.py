"""The cost section of a scenario: prices, power by state, carbon intensity of regions (`carbon.csv`); and what energy
costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading.files import read_rows
from clustersim.simulator.reading.quantities import Number, Power, Section, number
from clustersim.simulator.reading.validation import Fault, near

CARBON_TABLE = Path(__file__).with_name("carbon.csv")


@lru_cache
def regions() -> Mapping[str, float]:
    """Return kg of CO2 per kWh by region.

    >>> regions()["france_bloom"]
    0.057
    """
    _, *rows = read_rows(CARBON_TABLE)
    return {row.cells[0]: float(row.cells[1]) for row in rows}


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


SECONDS_PER_DAY = 86_400.0
SECONDS_PER_HOUR = 3600.0
JOULES_PER_MWH = 3.6e9

COMPUTING = ("compute", "recompute", "optimizer")
"""Parts of a breakdown in which a GPU computes. In those named `exposed_*` and `copy` it communicates."""


@dataclass(frozen=True)
class PowerByState:
    """Watts at the meter of all *gpus* of a job and their nodes, PUE included, by state of the GPUs."""

    computing: float
    communicating: float
    idle: float

    def of_step(self, breakdown: Mapping[str, float]) -> float:
        """Return the mean power over a step with this *breakdown* (s by part)."""
        total = sum(breakdown.values())
        if not total:
            return self.computing
        joules = sum(seconds * self._while(part) for part, seconds in breakdown.items())
        return joules / total

    def _while(self, part: str) -> float:
        if part in COMPUTING:
            return self.computing
        return self.idle if part == "bubble" else self.communicating


def power(gpus: Mapping[Accelerator, int], nodes: int, cost: Cost | None) -> PowerByState | None:
    """Return the power of a job on *gpus* (count by type) in *nodes*; None if no GPU's power is known.

    States without a power of their own have that of computing.
    """
    section = cost or Cost()
    count = sum(gpus.values())
    computing = sum(number * (section.gpu_power or gpu.power) for gpu, number in gpus.items())
    if not computing:
        return None
    overhead = nodes * (section.node_power or 0.0)
    states = (section.communicating_power, section.idle_power)
    communicating, idle = (computing if watts is None else count * watts for watts in states)
    return PowerByState(*(section.pue * (watts + overhead) for watts in (computing, communicating, idle)))


def account(seconds: float, gpus: int, joules: float | None, cost: Cost | None) -> dict[str, float | None]:
    """Return what *seconds* of *gpus* GPUs that take *joules* at the meter cost; None for what is not known."""
    hours = gpus * seconds / SECONDS_PER_HOUR
    energy = joules / JOULES_PER_MWH if joules is not None else None
    reserved = cost.reserved_gpu_hour * hours if cost and cost.reserved_gpu_hour is not None else None
    return {
        "days": seconds / SECONDS_PER_DAY,
        "gpu_hours": hours,
        "energy_mwh": energy,
        "cost": cost.gpu_hour * hours if cost else None,
        **({"cost_reserved": reserved} if reserved is not None else {}),
        # kWh x kg/kWh: one MWh at 1 kg/kWh is one tonne
        "co2_t": energy * cost.intensity if cost and energy is not None else None,
    }
