"""Ops too short to be seen: boxes narrower than some pixels are merged into shades, or a chart shows one period of the
steady state of a step alone.

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
from clustersim.simulator.analysis.timeline import Columns, Floats, Integers, Timeline, micro_batches
from clustersim.simulator.charts.palette import WAIT, Paint, in_order
from clustersim.simulator.charts.rows import Boxes
from clustersim.simulator.schedule.ops import Compute, Op

REACH = 8
"""Columns to each side of a moving mean; boxes that repeat within so many columns cannot be told apart in a mixture."""

LEAST_BOX = 3.0
"""Least width in pixels of a box; the edges of a narrower one would hide its neighbours."""

LEAST_EDGED = 6.0
"""Least width in pixels of the median box for boxes with edges; boxes without edges merge where they touch."""

TOUCHING = 1e-9
"""Largest gap between touching boxes, as a share of the window: rounding."""

ALIKE = 0.02
"""Share by which the lengths of two periods may differ."""

LONGEST_CYCLE = 64
"""Forward passes of one period at most: an interleaved order repeats itself after as many as it has stages."""

MOST_OPS = 200
"""Median computations of a rank in one period at most: each has some six pixels of a chart."""


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


class Period(NamedTuple):
    """A period of *rank* from *begin* to *end* (s), and *what* it is."""

    rank: int
    begin: float
    end: float
    what: str


def steady_period(timeline: Timeline, ranks: Sequence[int]) -> Period | None:
    """Return a period of the steady state of the rank in the middle of *ranks*; None if nothing repeats.

    First the period of micro-batches: from a forward pass in the middle of the step to the next one that is followed
    alike. If it has too many ops to tell them apart, or there is none, the period of layers: from the backward pass of
    a layer in the middle to that of the next.
    """
    rank = ranks[len(ranks) // 2]
    periods = list(_periods(timeline, rank))
    computes = timeline.schedule.program(rank).column(lambda op: isinstance(op, Compute), np.bool_)
    own = timeline.of(rank)
    lengths = (own.end - own.begin)[computes[own.op]]
    seen = MOST_OPS * float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 0.0
    legible = [one for one in periods if one.end - one.begin <= seen]
    return next(iter(legible), min(periods, key=lambda one: one.end - one.begin, default=None))


def _periods(timeline: Timeline, rank: int) -> Iterator[Period]:
    """Yield the periods of *rank*: of micro-batches, then of layers in the backward and in the forward pass."""
    own, program = timeline.of(rank), timeline.schedule.program(rank)
    last = own.step == own.step.max(initial=0)
    for phase, what in (("F", "micro-batches"), ("B", "layers"), ("F", "layers")):
        layers: dict[str, int] = {}

        def number(op: Op, phase: str = phase, what: str = what, layers: dict[str, int] = layers) -> int:
            """Number the part of the phase that *op* belongs to, from 1; 0 if it is of another phase."""
            if not isinstance(op, Compute) or op.action is None or op.action.phase != phase:
                return 0
            if what == "layers":
                return 0 if op.layer is None else 1 + layers.setdefault(op.layer, len(layers))
            return 1 + op.action.stage

        part = program.column(number, np.int64)[own.op]
        begins = _begins(own, np.stack((part, micro_batches(program)[own.op])), last & (part > 0), what)
        found = _period(begins, _middle(own, program.column(_phase, np.int64)))
        if found is not None:
            begin, end, cycle = found
            yield Period(rank, begin, end, _told(what, cycle))


def _begins(own: Columns, key: np.ndarray, kept: np.ndarray, what: str) -> Floats:
    """Return when the parts that *key*, of shape (2, spans), numbers begin, ascending; of micro-batches the first."""
    order = np.flatnonzero(kept)
    order = order[np.argsort(own.begin[order], kind="stable")]
    if not len(order):
        return np.zeros(0)
    if what == "micro-batches":
        _, firsts = np.unique(key[:, order], axis=1, return_index=True)
    else:
        firsts = np.flatnonzero(np.append(True, np.any(np.diff(key[:, order]) != 0, axis=0)))
    return np.asarray(np.sort(own.begin[order[firsts]]), np.float64)


def _phase(op: Op) -> int:
    """Return 1 for a forward pass, 2 for a backward pass, 0 for anything else."""
    return " FB".find(op.action.phase) if isinstance(op, Compute) and op.action is not None else 0


def _middle(own: Columns, phase: np.ndarray) -> float:
    """Return the middle of the time in which forward and backward passes alternate; of all time if they do not, s."""
    forward, backward = (own.begin[phase[own.op] == number] for number in (1, 2))
    if not len(forward) or not len(backward):
        return float(own.begin.mean())
    return float(backward.min() + forward.max()) / 2


def _period(begins: Floats, moment: float) -> tuple[float, float, int] | None:
    """Return (begin, end, parts) of the shortest period of *begins* around *moment* (s); None if nothing repeats.

    >>> _period(np.array([0.0, 1.0, 3.0, 4.0, 6.0, 7.0, 9.0, 10.0, 12.0]), 6.0)
    (6.0, 9.0, 2)
    """
    middle = int(np.clip(np.searchsorted(begins, moment), len(begins) // 4, 3 * len(begins) // 4))
    for cycle in range(1, min(LONGEST_CYCLE, len(begins) // 4) + 1):
        lengths = begins[cycle:] - begins[:-cycle]
        own = lengths[middle - cycle : middle + cycle]
        if middle >= cycle and len(own) == 2 * cycle and own.min() > 0 and own.max() - own.min() <= ALIKE * own.max():
            return float(begins[middle]), float(begins[middle + cycle]), cycle
    return None


def _told(what: str, cycle: int) -> str:
    one = {"micro-batches": "micro-batch", "layers": "layer"}[what]
    return f"a {one}" if cycle == 1 else f"{cycle} {what}"
