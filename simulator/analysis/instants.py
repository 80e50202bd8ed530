"""Instants: moments that differ only by rounding are equal, so that ends come before begins at the same moment."""

from __future__ import annotations

import numpy as np

from simulator.timeline import Floats

ONE_INSTANT = 1e-12
"""Share of the makespan within which moments are one instant: sums of some thousand doubles agree to that."""


def snapped(moments: Floats, makespan: float) -> Floats:
    """Return *moments* (s), each replaced by the first moment of its instant.

    Sorted moments belong to one instant as long as none is more than `ONE_INSTANT` of the *makespan* (s) after the one
    before it.

    >>> snapped(np.array([0.3, 0.1 + 0.2, 1.0]), 1.0).tolist()
    [0.3, 0.3, 1.0]
    """
    if not len(moments):
        return moments
    order = np.argsort(moments, kind="stable")
    ascending = moments[order]
    begins = np.diff(ascending, prepend=-np.inf) > ONE_INSTANT * makespan
    result = np.empty_like(moments)
    result[order] = ascending[begins][np.cumsum(begins) - 1]
    return result
