"""The interval of a step time: where 95 % of measured runs lie about predictions that nothing was fitted to.

It is empirical: limits of measured over predicted step times of published runs, by regime, which `clustersim accuracy
--intervals` writes to ``intervals.yaml``. A run belongs to one regime of each kind, and their mean limits are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

from simulator.document import read

FILE = Path(__file__).with_name("intervals.yaml")

LEVEL = 0.95
"""The share of runs that an interval is made for."""

FEWEST = 20
"""Rows of a regime that has limits of its own: the least in which one outlier is no more than 1 - `LEVEL`."""

SHORT = 1.0
"""s. Of shorter steps the host's time, which is known less well, is a large part."""

KINDS = ("fit of the GPU", "stack", "scale", "step")
"""The kinds of regimes."""

SCALES = ((9, "up to 8 GPUs"), (129, "9 to 128 GPUs"), (None, "more than 128 GPUs"))
"""One node; some nodes; clusters on which stragglers and congestion count."""


def regimes(fitted: bool, stack: str, ranks: int, seconds: float) -> dict[str, str]:
    """Return the regime of a run by kind. *fitted*: parameters of its GPU were fitted. *seconds*: predicted step time.

    The stack counts with its family: the first word of its name.

    >>> regimes(True, "megatron_2021", 8, 0.5)
    {'fit of the GPU': 'yes', 'stack': 'megatron', 'scale': 'up to 8 GPUs', 'step': 'below 1 s'}
    """
    values = (
        "yes" if fitted else "no",
        stack.partition("_")[0],
        next(name for bound, name in SCALES if bound is None or ranks < bound),
        "below 1 s" if seconds < SHORT else "1 s and more",
    )
    return dict(zip(KINDS, values, strict=True))


@dataclass(frozen=True)
class Limits:
    """Logarithms of measured over predicted step time, between which `LEVEL` of the runs lie; *low* <= 0 <= *high*."""

    low: float
    high: float

    def contains(self, ratio: float) -> bool:
        """Return whether the logarithm *ratio* of measured over predicted time lies between them."""
        return self.low <= ratio <= self.high

    @property
    def width(self) -> float:
        """The width of the interval over the predicted step time."""
        return exp(self.high) - exp(self.low)

    def about(self, seconds: float) -> tuple[float, float]:
        """Return the interval about the predicted *seconds*."""
        return seconds * exp(self.low), seconds * exp(self.high)


@dataclass(frozen=True)
class Intervals:
    """The limits of *all* rows, and those of each regime, by kind and name, that has enough rows of its own."""

    all: Limits
    of: Mapping[tuple[str, str], Limits]

    def limits(self, run: Mapping[str, str]) -> Limits:
        """Return the mean limits of the regimes *run*, by kind. A regime without limits of its own has those of all."""
        found = [self.of.get(regime, self.all) for regime in run.items()]
        return Limits(fmean(one.low for one in found), fmean(one.high for one in found))


@lru_cache(maxsize=1)
def shipped() -> Intervals:
    """Return the intervals of the file."""
    data: dict[str, Any] = read(FILE).data
    found = {
        (kind, name): Limits(entry["low"], entry["high"])
        for kind, entries in data["regimes"].items()
        for name, entry in entries.items()
        if "low" in entry
    }
    return Intervals(Limits(data["all"]["low"], data["all"]["high"]), found)
