"""Ranks that look equal in a chart share a row, and the row has the name of their pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.memory import stages
from clustersim.simulator.analysis.timeline import Columns, Floats, Integers, Timeline

SAMPLES = 8
"""Spans that are compared first, so that most pairs of unequal ranks need no more."""
MOST_COMPARED = 256
"""Classes that are compared with each other at most; a chart of more is thinned."""


class RankGroup(NamedTuple):
    """*ranks*, ascending, that look like *first*."""

    first: int
    ranks: Integers


def groups(timeline: Timeline, classes: Mapping[int, Integers], tolerance: float) -> list[RankGroup]:
    """Return *classes* of equal ranks, joined where all spans differ by at most *tolerance* (s)."""
    found: dict[int, list[Integers]] = {}
    by_program: dict[tuple[int, int], list[int]] = {}
    for first, ranks in classes.items():
        own = timeline.of(first)
        firsts = by_program.setdefault((timeline.schedule.program_of[first], len(own.op)), [])
        like = next((one for one in firsts if _alike(timeline.of(one), own, tolerance)), None)
        if like is None:
            firsts.append(first)
        found.setdefault(first if like is None else like, []).append(ranks)
    return [RankGroup(first, np.sort(np.concatenate(several))) for first, several in found.items()]


def same_values(rows: Mapping[int, Floats], classes: Mapping[int, Integers], tolerance: float) -> list[RankGroup]:
    """Return *classes* of ranks, joined where all values of their first ranks in *rows* differ by at most *tolerance*.

    The values of a group differ from those of its first rank by no more.
    """
    found: dict[int, list[Integers]] = {}
    for first, values in rows.items():
        like = next((one for one in found if float(np.abs(rows[one] - values).max(initial=0.0)) <= tolerance), first)
        found.setdefault(like, []).append(classes[first])
    return [RankGroup(first, np.sort(np.concatenate(several))) for first, several in found.items()]


def _alike(one: Columns, other: Columns, tolerance: float) -> bool:
    places = np.linspace(0, len(one.op) - 1, SAMPLES).astype(np.int64) if len(one.op) else np.zeros(0, np.int64)
    return _near(one, other, places, tolerance) and _near(one, other, np.arange(len(one.op)), tolerance)


def _near(one: Columns, other: Columns, places: Integers, tolerance: float) -> bool:
    if not np.array_equal(one.op[places], other.op[places]):
        return False
    pairs = ((one.ready, other.ready), (one.begin, other.begin), (one.end, other.end))
    return all(float(np.abs(a[places] - b[places]).max(initial=0.0)) <= tolerance for a, b in pairs)


def group_name(timeline: Timeline, ranks: Integers) -> str:
    """Return the name of a row of *ranks*, ascending: their stages if they are all ranks of these, else the ranks."""
    of_rank = stages(timeline.schedule)
    on_gpu = np.zeros(timeline.world_size, np.bool_)
    on_gpu[list(timeline.gpu_ranks)] = True
    if not of_rank[on_gpu].any() or not on_gpu[ranks].all():
        return class_name(ranks)
    mine = np.unique(of_rank[ranks])
    if len(ranks) == np.count_nonzero(on_gpu & np.isin(of_rank, mine)):
        count = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,} ranks"
        return f"{_numbered('stage', mine.tolist())} ({count})"
    return f"stage {mine[0]}: {class_name(ranks)}" if len(mine) == 1 else class_name(ranks)


def _numbered(word: str, numbers: Sequence[int]) -> str:
    """Return ascending *numbers* after *word*.

    >>> _numbered("stage", [3]), _numbered("stage", [1, 2, 3]), _numbered("stage", [0, 7])
    ('stage 3', 'stages 1-3', 'stages 0, 7')
    """
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    spans = [f"{a}-{b}" if b > a else f"{a}" for a, b in zip(starts, ends, strict=True)]
    return f"{word}s {_listed(spans)}"


def _listed(items: Iterable[str]) -> str:
    several = list(items)
    return ", ".join(several) if len(several) <= 3 else f"{several[0]}, {several[1]}, ... {several[-1]}"


def class_name(ranks: Integers) -> str:
    """Return the name of a class of equal *ranks*, ascending.

    >>> class_name(np.array([3])), class_name(np.arange(16)), class_name(np.arange(0, 100, 4))
    ('rank 3', 'ranks 0-15 (16)', 'ranks 0, 4, ... (25)')
    """
    first = int(ranks[0])
    if len(ranks) == 1:
        return f"rank {first}"
    if len(ranks) == 2:
        return f"ranks {first}, {ranks[1]}"
    if ranks[-1] - first == len(ranks) - 1:
        return f"ranks {first}-{ranks[-1]} ({len(ranks):,})"
    return f"ranks {first}, {ranks[1]}, ... ({len(ranks):,})"
