"""The ranks that the others wait for: those with the most time on the critical path, over several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from simulator.analysis.critical.path import critical_path
from simulator.timeline import Timeline


def blamed(timelines: Iterable[Timeline]) -> dict[int, int]:
    """Return how many of *timelines* have each rank as the one with the most seconds on its critical path.

    The rank with most of them comes first; of equal ones the lower.
    """
    counts: Counter[int] = Counter()
    for timeline in timelines:
        seconds = critical_path(timeline).by_rank()
        if seconds:
            counts[max(seconds, key=lambda rank: (seconds[rank], -rank))] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
