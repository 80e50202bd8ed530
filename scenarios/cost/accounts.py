"""Published accounts of training runs, derived again from the assumptions of their sources (`accounts.csv`).

The lecture's tables are two of them: days and cost of 175 billion and of a trillion parameters, and the energy and
emissions of GPT-3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scenarios.cost.energy import JOULES_PER_MWH, SECONDS_PER_DAY, SECONDS_PER_HOUR
from simulator.analysis.text import figure, table
from simulator.comma_separated import read_rows

TABLE = Path(__file__).with_name("accounts.csv")

ROUBLES_PER_GPU_MINUTE = 5.0
"""The price of a GPU-minute that the lecture takes."""

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
        flops = FLOPS_PER_PARAMETER_AND_TOKEN * float(cells["parameters"]) * float(cells["tokens"])
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


@dataclass(frozen=True)
class Comparison:
    """Carbontracker's estimate for GPT-3 and what it was compared with.

    190 MWh and 85 t CO2, as much as 126 homes in Denmark take in a year, or as a new car in Europe emits over 700,000
    km, twice the way to the Moon (The Register, 4 November 2020; Anthony et al. 2020, arXiv:2007.03051).
    """

    mwh: float = 190.0
    co2_t: float = 85.0
    homes: int = 126
    kilometres: float = 700_000.0
    flops: float = 3.14e23
    """FLOP of GPT-3 (Brown et al. 2020, arXiv:2005.14165, table D.1)."""
    peak: float = 125e12
    """FLOP/s of a V100's tensor cores (data sheet)."""
    to_the_moon: float = 384_400.0
    """km, the mean distance."""

    @property
    def carbon(self) -> float:
        """kg of CO2 per kWh that it implies: the average of the USA, as its source says."""
        return self.co2_t / self.mwh

    @property
    def home(self) -> float:
        """kWh of a home in Denmark in a year that it implies."""
        return 1000 * self.mwh / self.homes

    @property
    def kilogrammes_per_kilometre(self) -> float:
        """kg of CO2 of a new car in Europe for each km that it implies."""
        return 1000 * self.co2_t / self.kilometres

    @property
    def ways_to_the_moon(self) -> float:
        """Ways to the Moon that the car would drive."""
        return self.kilometres / self.to_the_moon

    @property
    def watts(self) -> float:
        """W of a V100 at the meter that it implies if all ran at their peak.

        The published account has V100 that reach 24.6 TFLOP/s and take 330 W, which makes it seven times as large.
        """
        return self.mwh * JOULES_PER_MWH / (self.flops / self.peak)


def accounts_table(several: Sequence[Account] | None = None) -> str:
    """Return the accounts as a table: what is derived, and in brackets what the source prints."""
    rows = []
    for one in several or accounts():
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
    return table(rows, header, "lr")


def _beside(derived: float | None, printed: str) -> str:
    if derived is None:
        return "-"
    return f"{derived:.4g} ({printed})" if printed else f"{derived:.4g}"
