"""Matrix products: measured times of single products beside the times priced by shape, by GPU and precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from scenarios.fitting.products import read_products, shipped
from scenarios.fitting.sources import source_of_table

TABLE = "published/products.csv"
"""Every ninth by size of 13,500 products measured by ai-dynamo/aiconfigurator: gpu, dtype, m, n, k, us, framework."""

LONG = 1e-4
"""s. A longer product is a large part of a training step; shorter ones are those of decoding."""


@dataclass(frozen=True)
class Products:
    """The relative *errors* of the priced times of products on *gpu* in *precision*, and the measured *seconds*."""

    source: str
    gpu: str
    precision: str
    errors: Sequence[float]
    seconds: Sequence[float]

    @property
    def long(self) -> list[float]:
        """The errors of products that take longer than `LONG`."""
        return [error for error, seconds in zip(self.errors, self.seconds, strict=True) if seconds > LONG]


def products(path: Path) -> list[Products]:
    """Return the errors of the products of the table at *path*, by GPU and precision in the order of the table.

    Each is priced as it was measured: alone, in a burst, by the shipped fit to products.
    """
    fit, source = shipped(), source_of_table(path.stem)
    return [
        Products(source, one.gpu, one.precision, one.errors(fit.values(one.gpu)).tolist(), one.seconds.tolist())
        for one in read_products(path)
    ]


def mean_error(errors: Sequence[float]) -> float:
    """Return the mean of the absolute *errors*; 0 without any."""
    return fmean(map(abs, errors)) if errors else 0.0
