"""Ties: over one of its axes a rank may be bound to ranks that are simulated beside it, and to nobody else.

Collectives over an axis tie their ranks if nobody disturbs them (`simulator.engine.folding`) and all of the group do
the same: one program, the same axes to themselves. A rank is tied over one axis, if it can be over that with most
collectives.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from simulator.engine.cast import Communication, Tie
from simulator.schedule import Collective, Program, Schedule


class Groups(Protocol):
    """What is known of the groups of ranks; docstrings at `simulator.engine.folding.Folding`."""

    def undisturbed_axes(self, rank: int) -> frozenset[str]: ...  # noqa: D102
    def private_axes(self, rank: int) -> frozenset[str]: ...  # noqa: D102
    def group(self, rank: int, axis: str) -> Communication: ...  # noqa: D102
    def ranks_of(self, name: Communication) -> frozenset[int]: ...  # noqa: D102


def ties(schedule: Schedule, groups: Groups, ranks: Iterable[int]) -> Mapping[int, Tie]:
    """By rank, of those of *ranks* that are tied to others of them: how."""
    preferred = [_by_number(program) for program in schedule.programs]
    candidates: dict[int, list[Tie]] = {}
    for rank in ranks:
        open_to = groups.undisturbed_axes(rank) - groups.private_axes(rank)
        axes = [axis for axis in preferred[schedule.program_of[rank]] if axis in open_to]
        names = [(axis, groups.group(rank, axis)) for axis in axes]
        candidates[rank] = [Tie(axis, name, groups.ranks_of(name)) for axis, name in names]
    while True:
        chosen = {rank: found[0] for rank, found in candidates.items() if found}
        refused = _refused(schedule, groups, chosen)
        if not refused:
            return chosen
        for found in candidates.values():
            found[:] = [tie for tie in found if tie not in refused]


def _refused(schedule: Schedule, groups: Groups, chosen: Mapping[int, Tie]) -> set[Tie]:
    """The ties that not all of their ranks have chosen, or whose ranks do not all do the same."""
    takers: defaultdict[Tie, set[int]] = defaultdict(set)
    for rank, tie in chosen.items():
        takers[tie].add(rank)
    return {
        tie
        for tie, ranks in takers.items()
        if ranks != tie.ranks or len({(schedule.program_of[rank], groups.private_axes(rank)) for rank in ranks}) > 1
    }


def _by_number(program: Program) -> list[str]:
    """The axes of the collectives of *program*, most used first."""
    count: Counter[str] = Counter()
    for ops, times in program.templates():
        for op in ops:
            if isinstance(op, Collective):
                count[op.over] += times
    return [axis for axis, _ in count.most_common()]
