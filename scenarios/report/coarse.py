"""Rows with fewer spans: short neighbours become one, so that a page of a large run stays small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scenarios.report.parts import Lane


def within(lanes: Sequence[Lane], most: int, window: tuple[float, float]) -> tuple[list[Lane], float]:
    """Return *lanes* with at most *most* spans in all, or one for each lane, and how short merged spans are (s).

    0 s if all spans are kept. Spans shorter than this length with gaps shorter than this length become one.
    """
    made, shortest = list(lanes), 0.0
    least = (window[1] - window[0]) / 2**30
    while sum(len(lane.begin) for lane in made) > max(most, len(made)) and least < window[1] - window[0]:
        shortest, least = least, 2 * least
        made = [merged(lane, shortest) for lane in lanes]
    return made, shortest


def merged(lane: Lane, shortest: float) -> Lane:
    """Return *lane* in which neighbours shorter than *shortest* (s) are one span: first those of one paint, then all.

    A span has the paint and the text of its longest op.
    """
    return _joined(_joined(lane, shortest, alike=True), shortest, alike=False)


def _joined(lane: Lane, shortest: float, *, alike: bool) -> Lane:
    """Return *lane* with short neighbours joined; *alike*: only those of one paint."""
    if len(lane.begin) < 2:
        return lane
    length = lane.end - lane.begin
    short = length < shortest
    near = lane.begin[1:] - np.maximum.accumulate(lane.end)[:-1] < shortest
    same = lane.paint[1:] == lane.paint[:-1] if alike else True
    group = np.cumsum(np.append(True, ~(short[1:] & short[:-1] & near & same))) - 1
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    # the last of each group by length
    order = np.lexsort((length, group))
    longest = order[np.append(firsts[1:], len(group)) - 1]
    return Lane(
        lane.name,
        np.minimum(np.minimum.reduceat(lane.ready, firsts), lane.begin[firsts]),
        lane.begin[firsts],
        np.maximum.reduceat(lane.end, firsts),
        lane.paint[longest],
        lane.text[longest],
        np.add.reduceat(lane.count, firsts),
    )
