"""The slowest of many GPUs, whose speeds are normal: its expectation, and for how many a pipeline waits."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from statistics import NormalDist

NORMAL = NormalDist()

HALVINGS = 40
"""Steps of a bisection: a number of GPUs is then exact to a millionth."""


def expected_maximum(count: float) -> float:
    """Return the expected maximum of *count* standard normal variables, by Blom (1958).

    >>> round(expected_maximum(64), 2)
    2.34
    """
    return NORMAL.inv_cdf((count - 0.375) / (count + 0.25))


def waited_for(ranks: Mapping[float, int], spread: float) -> float:
    """Return how many equally busy GPUs have a slowest one that takes as long as the last of *ranks*.

    *ranks*: how many of them compute for so many seconds on a mean GPU. *spread*: the coefficient of variation of the
    speeds of GPUs. One with less work counts by its probability to end after the slowest of that number, relative to
    that of one with the most work.

    >>> waited_for({1.0: 96}, 0.03)
    96.0
    >>> round(waited_for({1.0: 3024, 1.06: 48}, 0.03), 1)
    49.5
    """
    longest = max(ranks)
    least, most = float(ranks[longest]), float(sum(ranks.values()))
    if not longest or not spread or least == most:
        return most

    def counted(count: float) -> float:
        slowest = expected_maximum(count)
        end = longest * (1.0 + spread * slowest)
        late = sum(number * _above((end / work - 1.0) / spread if work else inf) for work, number in ranks.items())
        return late / _above(slowest)

    for _ in range(HALVINGS):
        between = (least + most) / 2
        least, most = (between, most) if counted(between) > between else (least, between)
    return most


def _above(deviations: float) -> float:
    """Return the probability of a standard normal variable to be above *deviations*."""
    return NORMAL.cdf(-deviations)
