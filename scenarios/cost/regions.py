"""Carbon intensity of the electricity of regions, from a table with sources (`carbon.csv`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from simulator.comma_separated import read_rows

TABLE = Path(__file__).with_name("carbon.csv")


@lru_cache
def regions() -> Mapping[str, float]:
    """Return kg of CO2 per kWh by region.

    >>> regions()["france_bloom"]
    0.057
    """
    _, *rows = read_rows(TABLE)
    return {row.cells[0]: float(row.cells[1]) for row in rows}
