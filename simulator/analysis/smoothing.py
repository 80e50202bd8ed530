"""Smoothing of shades: boxes that repeat every few pixels would beat with the pixels (moire)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from simulator.timeline import Floats, Integers

REACH = 8
"""Columns to each side of a moving mean; boxes that repeat within so many columns cannot be told apart in a mixture."""


def smoothed(shares: Floats, columns: Integers, ends: Sequence[Integers]) -> Floats:
    """Return the *shares* of paints, of shape (paints, columns), with moving means where several paints mix.

    *columns*: the numbers of the columns, ascending. *ends*: for each paint the columns between which it is present,
    begins and ends; no mean extends over such a column, so that phases keep their edges. The sum of the shares of a
    paint stays the same.
    """
    result = shares.copy()
    for first, last in _segments(columns, _cuts(np.concatenate([*ends, np.zeros(0, np.int64)]))):
        part = shares[:, first:last]
        if last - first > 2 and np.count_nonzero(part.max(axis=1)) > 1:
            result[:, first:last] = _mean(_mean(part))
    return result


def _cuts(ends: Integers) -> Integers:
    """Return the columns of *ends*; of several within a few columns that with most of them, else the first.

    >>> _cuts(np.array([10, 12, 12, 40])).tolist()
    [12, 40]
    """
    cuts, counts = np.unique(ends, return_counts=True)
    groups = np.split(np.arange(len(cuts)), np.flatnonzero(np.diff(cuts) > REACH // 2) + 1)
    return np.array([cuts[group[counts[group].argmax()]] for group in groups if len(group)], np.int64)


def _segments(columns: Integers, cuts: Integers) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each sequence of neighbouring *columns* without one of *cuts* inside."""
    if not len(columns):
        return
    breaks = np.diff(columns) > 1
    breaks |= np.isin(columns[1:], cuts)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(columns)]
    yield from pairwise(edges)


def _mean(part: Floats) -> Floats:
    """Return the moving means of each row of *part*; mirrored ends keep the sum of the row."""
    reach = min(REACH, part.shape[1] // 2)
    padded = np.pad(part, ((0, 0), (reach, reach)), mode="symmetric")
    sums = np.cumsum(np.pad(padded, ((0, 0), (1, 0))), axis=1)
    width = 2 * reach + 1
    means: Floats = np.maximum(sums[:, width:] - sums[:, :-width], 0.0) / width
    return means
