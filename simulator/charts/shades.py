"""Shades: boxes narrower than some pixels are merged, and each column of pixels shows the share of each paint in it.

A row is drawn as boxes if they are wide enough to be distinguished, and as columns of pixels elsewhere. A column is
divided among all spans in it, so that no span is lost, none is drawn too large, and equal patterns look equal. Where
spans of several paints alternate every few pixels, which would beat with the pixels (moire), their shares are smoothed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.intervals import averages
from clustersim.simulator.analysis.timeline import Floats, Integers
from clustersim.simulator.charts.palette import WAIT, Paint, in_order
from clustersim.simulator.charts.rows import Boxes

REACH = 8
"""Columns to each side of a moving mean; boxes that repeat within so many columns cannot be told apart in a mixture."""

LEAST_BOX = 3.0
"""Least width in pixels of a box; the edges of a narrower one would hide its neighbours."""

LEAST_EDGED = 6.0
"""Least width in pixels of the median box for boxes with edges; boxes without edges merge where they touch."""

TOUCHING = 1e-9
"""Largest gap between touching boxes, as a share of the window: rounding."""


class Shades(NamedTuple):
    """The share of each of *paints* in each of *columns* (numbers, ascending), of shape (paints, columns).

    *of*: the number of columns of the chart.
    """

    paints: list[Paint]
    columns: Integers
    shares: Floats
    of: int


class Drawn(NamedTuple):
    """Wide boxes of one paint; *edged*: with an edge around each."""

    boxes: Boxes
    edged: bool


def drawn(boxes: Sequence[Boxes], window: tuple[float, float], columns: int) -> tuple[list[Drawn], Shades]:
    """Return the wide boxes and the shades of the *boxes* of a row, in *window* (s) on *columns* columns of pixels."""
    pixel = (window[1] - window[0]) / columns
    wide, narrow, every = [], [], []
    for one in boxes:
        edged = one.paint != WAIT and float(np.median(one.end - one.begin)) >= LEAST_EDGED * pixel
        begin, end = (one.begin, one.end) if edged else merged(one.begin, one.end, TOUCHING * (window[1] - window[0]))
        every.append(Boxes(one.paint, begin, end, one.virtual))
        large = end - begin >= LEAST_BOX * pixel
        if large.any():
            wide.append(Drawn(Boxes(one.paint, begin[large], end[large], one.virtual), edged))
        narrow.append((np.stack((begin, end))[:, ~large] - window[0]) / pixel)
    shaded = _touched(np.concatenate(narrow, axis=1) if narrow else np.zeros((2, 0)), columns)
    if not len(shaded):
        return wide, Shades([], shaded, np.zeros((0, 0)), columns)
    shaded = _enclosed(shaded, [one for one in wide if one.boxes.paint != WAIT], window, columns)
    paints, shares = _shares(every, np.linspace(*window, columns + 1))
    wide = [Drawn(_uncovered(one.boxes, shaded, window, columns), one.edged) for one in wide]
    wide = [one for one in wide if len(one.boxes.begin)]
    return wide, Shades(paints, shaded, smoothed(shares[:, shaded], shaded, _ends(every, window, pixel)), columns)


def _ends(boxes: Sequence[Boxes], window: tuple[float, float], pixel: float) -> list[Integers]:
    """Return, for each of *boxes* of work, the columns where it begins and ends; gaps that a mean bridges are none."""
    paints = in_order(one.paint for one in boxes if one.paint != WAIT)
    ends = []
    for paint in paints:
        mine = [one for one in boxes if one.paint == paint]
        begin, end = (np.concatenate(one) for one in zip(*((one.begin, one.end) for one in mine), strict=True))
        ends.append(np.concatenate(merged(begin, end, REACH * pixel)))
    return [np.rint((one - window[0]) / pixel).astype(np.int64) for one in ends]


def _enclosed(shaded: Integers, boxes: Sequence[Drawn], window: tuple[float, float], columns: int) -> Integers:
    """Return the *shaded* columns, and those of *boxes* of a few pixels between two of them: specks otherwise."""
    dark = np.zeros(columns + 2, np.bool_)
    dark[shaded + 1] = True
    changes = np.zeros(columns + 1, np.int64)
    scale = columns / (window[1] - window[0])
    for one, _ in boxes:
        first = np.clip(np.floor((one.begin - window[0]) * scale).astype(np.int64), 0, columns)
        last = np.clip(np.ceil((one.end - window[0]) * scale).astype(np.int64), 0, columns)
        within = dark[first] & dark[last + 1] & (last - first <= REACH)
        np.add.at(changes, first[within], 1)
        np.add.at(changes, last[within], -1)
    return np.flatnonzero(dark[1:-1] | (np.cumsum(changes)[:columns] > 0))


def _uncovered(boxes: Boxes, shaded: Integers, window: tuple[float, float], columns: int) -> Boxes:
    """Return those of *boxes* that are not wholly under *shaded* columns."""
    free = np.ones(columns + 1, np.int64)
    free[shaded] = 0
    until = np.append(0, np.cumsum(free))
    scale = columns / (window[1] - window[0])
    first = np.floor((boxes.begin - window[0]) * scale).astype(np.int64)
    last = np.ceil((boxes.end - window[0]) * scale).astype(np.int64)
    seen = until[np.clip(last, 0, columns)] > until[np.clip(first, 0, columns)]
    return Boxes(boxes.paint, boxes.begin[seen], boxes.end[seen], boxes.virtual)


def _touched(intervals: Floats, columns: int) -> Integers:
    """Return the columns of pixels that *intervals* (begins and ends, in pixels) touch, and short gaps between them.

    One or two columns of a box between shades would look like a speck.
    """
    first = np.clip(np.floor(intervals[0]), 0, columns - 1)
    begin, end = merged(first, np.clip(np.ceil(intervals[1]), first + 1, columns), LEAST_BOX)
    changes = np.zeros(columns + 1, np.int64)
    np.add.at(changes, begin.astype(np.int64), 1)
    np.add.at(changes, end.astype(np.int64), -1)
    return np.flatnonzero(np.cumsum(changes)[:columns])


def merged(begin: Floats, end: Floats, gap: float = 0.0) -> tuple[Floats, Floats]:
    """Return the union of intervals, ascending; intervals at most *gap* apart are merged.

    >>> begin, end = merged(np.array([4.0, 0.0, 1.0, 1.5]), np.array([5.0, 1.0, 3.0, 2.0]))
    >>> begin.tolist(), end.tolist()
    ([0.0, 4.0], [3.0, 5.0])
    """
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    firsts = np.flatnonzero(np.append(True, begin[1:] > reached[:-1] + gap)[: len(begin)])
    return begin[firsts], reached[np.append(firsts[1:], len(begin)) - 1] if len(begin) else reached


def _shares(boxes: Sequence[Boxes], edges: Floats) -> tuple[list[Paint], Floats]:
    """Return the share of each paint in each column between *edges*.

    Simultaneous spans share a column equally; waits have the rest.
    """
    paints = in_order(one.paint for one in boxes)
    spans = []
    for paint in paints:
        mine = [one for one in boxes if one.paint == paint]
        spans.append(merged(np.concatenate([one.begin for one in mine]), np.concatenate([one.end for one in mine])))
    begin, end = (np.concatenate(column) for column in zip(*spans, strict=True))
    row = np.repeat(np.arange(len(paints)), [len(own) for own, _ in spans])
    shares = averages(begin, end, np.ones(len(begin)), row, len(paints), edges)
    shares = np.clip(shares, 0.0, 1.0)
    works = np.array([paint != WAIT for paint in paints], np.bool_)
    shares[works] /= np.maximum(shares[works].sum(axis=0), 1.0)
    left = np.maximum(1.0 - shares[works].sum(axis=0), 0.0)
    shares[~works] = np.minimum(shares[~works], left)
    return paints, shares


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


def colours(shades: Shades, fills: Floats, lines: int) -> Floats:
    """Return the columns as a picture with *lines* lines: red, green and blue, of shape (lines, columns, 3).

    Paints are stacked in a column by their shares. They are mixed with white, or with the fill of waits, by the share
    without work. *fills*: red, green and blue of each paint.
    """
    works = np.array([paint != WAIT for paint in shades.paints], np.bool_)
    busy = shades.shares[works].sum(axis=0)
    tops = np.cumsum(shades.shares[works], axis=0) / np.where(busy > 0, busy, 1.0)
    # for each line, from below, the part that is under the top of each paint
    under = np.clip(tops[:, None, :] * lines - np.arange(lines)[::-1, None], 0.0, 1.0)
    strong = np.einsum("pln,pc->lnc", np.diff(under, axis=0, prepend=0.0), fills[works])
    waits = shades.shares[~works].T
    pale = (1.0 - busy - waits.sum(axis=1))[:, None] + waits @ fills[~works]
    mixture: Floats = busy[:, None] * strong + pale
    return mixture
