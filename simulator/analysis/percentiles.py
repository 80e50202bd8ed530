"""Percentiles of the step times of repeats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SHOWN = (5, 50, 95)

TAIL, TAIL_FROM = 99, 100
"""A percentile that is given too from so many values on; fewer say nothing of it."""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The percentiles of *values* by name, linear between values.

    >>> percentiles([1.0, 2.0, 3.0])
    {'p5': 1.1, 'p50': 2.0, 'p95': 2.9}
    """
    shown = (*SHOWN, TAIL) if len(values) >= TAIL_FROM else SHOWN
    return {f"p{one}": float(value) for one, value in zip(shown, np.percentile(values, shown), strict=True)}
