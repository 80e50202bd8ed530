"""What a training run costs: the section ``cost``, power by state, energy, and published accounts.

Carbon intensities of regions are those of ``carbon.csv``. Published accounts (``accounts.csv``) are derived again from
the assumptions of their sources. The lecture's tables are among them: days and cost of 175 billion and of a trillion
parameters, and the energy and emissions of GPT-3 with what they are equal to.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.files import read_rows
from clustersim.simulator.reading.plain_text import figure, table
from clustersim.simulator.reading.quantities import Number, Power, Section, number
from clustersim.simulator.reading.units import SECONDS_PER_DAY, SECONDS_PER_HOUR
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
    """Carbon intensity of the electricity: kg of CO2 per kWh, or a region of scenarios/specification/carbon.csv."""

    @property
    def intensity(self) -> float:
        """kg of CO2 per kWh."""
        return regions()[self.carbon] if isinstance(self.carbon, str) else self.carbon


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


TABLE = Path(__file__).with_name("accounts.csv")

ROUBLES_PER_GPU_MINUTE = 5.0
"""The price of a GPU-minute that the lecture takes."""

KWH_PER_HOME = 1508.0
"""kWh of a home in Denmark in a year: 190 MWh are those of 126 homes (The Register, 4 November 2020)."""

GRAMMES_PER_KILOMETRE = 120.4
"""g of CO2 of a new car in Europe for each km (European Environment Agency, average of 2018)."""

TO_THE_MOON = 384_400.0
"""km to the Moon, the mean distance."""

FLOPS_PER_PARAMETER_AND_TOKEN = 8
"""With full recomputation: forward twice and backward (Narayanan et al. 2021, equation 4)."""


@dataclass(frozen=True)
class Account:
    """Days, GPU-hours, roubles at the lecture's price, MWh and t of CO2 of a *run*; None for what is not derived.

    *printed*: days, MWh and t as their *source* prints them.
    """

    run: str
    gpus: int
    days: float
    gpu_hours: float
    roubles: float
    mwh: float | None
    co2_t: float | None
    printed: tuple[str, str, str]
    source: str


def accounts() -> list[Account]:
    """Return the accounts of the table."""
    header, *rows = read_rows(TABLE)
    return [_account(dict(zip(header.cells, row.cells, strict=True))) for row in rows]


def _account(cells: dict[str, str]) -> Account:
    gpus = int(cells["gpus"])
    if cells["tflops_per_gpu"]:
        recomputed = FLOPS_PER_PARAMETER_AND_TOKEN * float(cells["parameters"]) * float(cells["tokens"])
        flops = float(cells["flops"]) if cells["flops"] else recomputed
        seconds = flops / (gpus * float(cells["tflops_per_gpu"]) * 1e12)
        hours = gpus * seconds / SECONDS_PER_HOUR
    else:
        hours = float(cells["gpu_hours"])
        seconds = hours / gpus * SECONDS_PER_HOUR
    joules = hours * SECONDS_PER_HOUR * float(cells["watts"]) * float(cells["pue"]) if cells["watts"] else None
    mwh = joules / JOULES_PER_MWH if joules is not None else None
    return Account(
        cells["run"],
        gpus,
        seconds / SECONDS_PER_DAY,
        hours,
        60 * hours * ROUBLES_PER_GPU_MINUTE,
        mwh,
        mwh * float(cells["kg_per_kwh"]) if mwh is not None else None,
        (cells["printed_days"], cells["printed_mwh"], cells["printed_t"]),
        cells["source"],
    )


def equivalents(mwh: float, co2_t: float) -> str:
    """Return what *mwh* and *co2_t* are equal to, in the comparisons of the lecture.

    >>> equivalents(190, 85)
    '126 homes in Denmark for a year; 706,000 km of a new car in Europe, 1.8 ways to the Moon'
    """
    homes, kilometres = 1000 * mwh / KWH_PER_HOME, 1e6 * co2_t / GRAMMES_PER_KILOMETRE
    return (
        f"{homes:,.0f} homes in Denmark for a year; "
        f"{round(kilometres, -3):,.0f} km of a new car in Europe, {kilometres / TO_THE_MOON:.1f} ways to the Moon"
    )


def accounts_table(several: Sequence[Account] | None = None) -> str:
    """Return the accounts as a table: what is derived, in brackets what the source prints, and what energy equals."""
    rows, told = [], several or accounts()
    for one in told:
        days, mwh, tonnes = one.printed
        rows.append(
            [
                one.run,
                f"{one.gpus:,}",
                _beside(one.days, days),
                figure(one.gpu_hours),
                figure(one.roubles / 1e6),
                _beside(one.mwh, mwh),
                _beside(one.co2_t, tonnes),
            ]
        )
    header = ["run", "GPUs", "days", "GPU-hours", "million roubles", "MWh", "t CO2"]
    equal = [
        f"{one.run}: {equivalents(one.mwh, one.co2_t)}" for one in told if one.mwh is not None and one.co2_t is not None
    ]
    return "\n".join([table(rows, header, "lr"), *equal])


def _beside(derived: float | None, printed: str) -> str:
    if derived is None:
        return "-"
    return f"{figure(derived)} ({printed})" if printed else figure(derived)
