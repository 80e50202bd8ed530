"""Rows with fewer spans: short neighbours become one, so that a page of a large run stays small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scenarios.report.parts import Lane
from simulator.timeline import Integers
from simulator.units import show

ALIKE = 8
"""Ops of one paint are joined up to so many times the length of ops of several."""
FIRST, STEP = 2.0**-22, 1.5
"""The first length that is tried, as a share of the window, and by what it grows."""


def within(lanes: Sequence[Lane], most: int, window: tuple[float, float]) -> tuple[list[Lane], float]:
    """Return *lanes* with at most *most* spans in all, or one for each lane, and how short merged spans are (s).

    0 s if all spans are kept; see `merged`.
    """
    made, shortest = list(lanes), 0.0
    least = (window[1] - window[0]) * FIRST
    while sum(len(lane.begin) for lane in made) > max(most, len(made)) and least < ALIKE * (window[1] - window[0]):
        shortest, least = least, STEP * least
        made = [merged(lane, shortest) for lane in lanes]
    return made, shortest


def merged(lane: Lane, shortest: float) -> Lane:
    """Return *lane* in which neighbours are one span that are of one paint and shorter than *shortest* (s).

    Of different paints they are one if they are `ALIKE` times shorter and begin in the same interval of twice that
    length. A span has the paint that takes most of its time, and the text of its first op.
    """
    gap = shortest / ALIKE
    one = _joined(lane, shortest, gap, lane.paint)
    return _joined(one, gap, gap, np.floor(one.begin / (2 * gap)).astype(np.int64))


def _joined(lane: Lane, shortest: float, gap: float, kind: Integers) -> Lane:
    """Return *lane* in which neighbours of one *kind* are one span if they are short and nearer than *gap* (s)."""
    if len(lane.begin) < 2:
        return lane
    length = lane.end - lane.begin
    short = length < shortest
    near = lane.begin[1:] - np.maximum.accumulate(lane.end)[:-1] < gap
    same = kind[1:] == kind[:-1]
    group = np.cumsum(np.append(True, ~(short[1:] & short[:-1] & near & same))) - 1
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    kinds = int(lane.paint.max()) + 1
    shares = np.bincount(group * kinds + lane.paint, lane.busy, len(firsts) * kinds).reshape(len(firsts), kinds)
    return Lane(
        lane.name,
        np.minimum(np.minimum.reduceat(lane.ready, firsts), lane.begin[firsts]),
        lane.begin[firsts],
        np.maximum.reduceat(lane.end, firsts),
        shares.argmax(axis=1),
        lane.text[firsts],
        np.add.reduceat(lane.count, firsts),
        np.add.reduceat(lane.busy, firsts),
    )


def joined_note(what: str, shortest: float) -> str:
    """Return what a reader should know of a chart in which spans were merged up to *shortest* (s)."""
    several = show(shortest / ALIKE, "time", 3)
    return (
        f"To keep the page small, neighbouring {what} shorter than {show(shortest, 'time', 3)} are one box, of several "
        f"kinds only below {several}."
    )
