"""Published accounts of training runs, derived again from the assumptions of their sources (`accounts.csv`).

The lecture's tables are among them: days and cost of 175 billion and of a trillion parameters, and the energy and
emissions of GPT-3 with what they are equal to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clustersim.scenarios.cost.cost import JOULES_PER_MWH, SECONDS_PER_DAY, SECONDS_PER_HOUR
from clustersim.simulator.reading.files import read_rows
from clustersim.simulator.reading.plain_text import figure, table

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
