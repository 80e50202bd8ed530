"""Instants and intervals of time: moments that differ only by rounding are equal; the division of a window among the
kinds of active intervals, and means over bins.
"""

from __future__ import annotations

import numpy as np

from clustersim.simulator.analysis.timeline import Floats, Integers
from clustersim.simulator.hardware.hashing import distinct

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


def partition(begin: Floats, end: Floats, kind: Integers, kinds: int, window: tuple[float, float]) -> Floats:
    """Return the seconds of *window* by kind of interval; each moment counts for the lowest active kind.

    Intervals from *begin* to *end* (n) have a *kind* (n) from 0 to *kinds* - 1 and may overlap; parts outside *window*
    are ignored. The result has *kinds* + 1 entries, the last for moments without an interval; they sum to the length
    of the window.

    >>> partition(np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([1, 0]), 2, (0.0, 4.0)).tolist()
    [2.0, 1.0, 1.0]
    """
    times = np.concatenate((begin, end, window))
    times.clip(*window, out=times)
    order = np.argsort(times, kind="stable")
    kind_at = np.concatenate((kind, kind, (kinds, kinds))).astype(np.int16)[order]
    change = np.ones(len(times), np.int8)
    change[len(begin) :] = -1
    change = change[order]
    lowest = np.full(len(times) - 1, kinds, np.int16)
    for one in distinct(kind)[::-1].astype(np.int16):
        active = np.cumsum(change * (kind_at == one), dtype=np.int32)[:-1] > 0
        np.copyto(lowest, one, where=active)
    return np.bincount(lowest, np.diff(times[order]), kinds + 1).astype(np.float64)


def averages(begin: Floats, end: Floats, height: Floats, row: Integers, rows: int, edges: Floats) -> Floats:
    """Return the exact mean height in each bin between evenly spaced *edges*, of shape (*rows*, bins).

    An interval from *begin* to *end* adds *height* to its *row*.

    >>> begin, end, height, row = np.array([0.5]), np.array([2.0]), np.array([4.0]), np.array([0])
    >>> averages(begin, end, height, row, 1, np.array([0.0, 1.0, 2.0])).tolist()
    [[2.0, 4.0]]
    """
    bins, width = len(edges) - 1, edges[1] - edges[0]
    inside = np.zeros(rows * (bins + 1))
    after = np.zeros(rows * (bins + 1))
    for times, sign in ((begin, 1.0), (end, -1.0)):
        moment = np.clip(times, edges[0], edges[-1])
        place = np.minimum(((moment - edges[0]) / width).astype(np.int64), bins - 1)
        flat = row * (bins + 1) + place
        inside += np.bincount(flat, sign * height * (edges[place + 1] - moment), rows * (bins + 1))
        after += np.bincount(flat + 1, sign * height, rows * (bins + 1))
    standing = np.cumsum(after.reshape(rows, bins + 1), axis=1)
    means: Floats = inside.reshape(rows, bins + 1)[:, :bins] / width + standing[:, :bins]
    return means
