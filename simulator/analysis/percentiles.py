"""Percentiles of the step times of repeats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SHOWN = (5, 50, 95)

TAIL, TAIL_FROM = 99, 100
"""A further percentile, and the number of values from which it is given; fewer do not determine it."""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of *values* by name, by linear interpolation.

    >>> percentiles([1.0, 2.0, 3.0])
    {'p5': 1.1, 'p50': 2.0, 'p95': 2.9}
    """
    shown = (*SHOWN, TAIL) if len(values) >= TAIL_FROM else SHOWN
    return {f"p{one}": float(value) for one, value in zip(shown, np.percentile(values, shown), strict=True)}
