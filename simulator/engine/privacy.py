"""Privacy: which collectives have their links to themselves, so that how long they take is known beforehand.

Whatever else lies on such a link stands in turn with them: some rank takes part in all communications that share it,
always on its compute stream, or with one of them enclosed beside it (`simulator.engine.issue.enclosed`). Then two of
them are never there at the same time. Links that no load can fill disturb no one, whoever shares them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.census import COPIES, Census
from simulator.engine.issue import enclosed
from simulator.engine.ragged import places
from simulator.hashing import Indices, mixed, sorted_once
from simulator.schedule import Collective, Copy, Op, Program, Recv, Send

Flags = NDArray[np.bool_]


class _Sets(NamedTuple):
    """Sets of communications, *members* set after set: how many each has, and where it begins."""

    members: Indices
    sizes: Indices
    begins: Indices


class Privacy:
    """What shares links in *census*: ``communications[i]`` lies on ``links[i]``; links that never bind are left out."""

    def __init__(self, census: Census, communications: Indices, links: Indices) -> None:
        self._census = census
        self._batch_of = np.repeat(np.arange(len(census.batches)), [len(batch.ranks) for batch in census.batches])
        self._communications, self._links = communications, links
        self._blocking = [_blocking(program) for program in census.schedule.programs]
        self._enclosed: dict[tuple[int, str], bool] = {}

    def undisturbed(self, asked: Flags) -> Flags:
        """By communication: whether it is one of those *asked* for, and nothing ever shares its links."""
        left = asked & self._alone
        sets = self._together(left)
        disturbed = ~self._in_turn(sets)
        left[sets.members[np.repeat(disturbed, sets.sizes)]] = False
        return left

    @cached_property
    def _alone(self) -> Flags:
        """By communication: whether some rank takes part in all that is asked of it in turn."""
        census = self._census
        known = (self._one_by_one([number])[census.program_of[b.ranks]] for number, b in enumerate(census.batches))
        return np.concatenate([np.zeros(0, np.bool_), *(able.any(axis=1) for able in known)])

    def _together(self, asked: Flags) -> _Sets:
        """The communications that share a link with one of those *asked* for, each set once."""
        here = self._shared & asked[self._communications]
        concerned = np.zeros(self._links.max(initial=0) + 1, np.bool_)
        concerned[self._links[here]] = True
        here = concerned[self._links]
        span = max(1, len(asked))
        link, number = np.divmod(sorted_once(self._links[here] * span + self._communications[here]), span)
        begins = np.flatnonzero(np.diff(link, prepend=-1))
        sizes = np.diff(begins, append=len(link))
        told = np.add.reduceat(mixed(number.astype(np.uint64)), begins) if len(begins) else begins.astype(np.uint64)
        first = np.unique(told, return_index=True)[1]
        sizes = sizes[first]
        return _Sets(number[places(begins[first], sizes)], sizes, np.cumsum(sizes) - sizes)

    def _in_turn(self, sets: _Sets) -> Flags:
        """By set: whether some rank takes part in all of it, in turn."""
        if not len(sets.sizes):
            return np.zeros(0, np.bool_)
        batches = self._batch_of[sets.members]
        number, rank = self._candidates(sets, batches)
        sizes = sets.sizes[number]
        there = places(sets.begins[number], sizes)
        takes_part = self._census.number_at[batches[there], np.repeat(rank, sizes)] == sets.members[there]
        if not len(number):
            return np.zeros(len(sets.sizes), np.bool_)
        of_all = np.logical_and.reduceat(takes_part, np.cumsum(sizes) - sizes)
        orderly, kind = self._orderly(sets, batches)
        found = of_all & orderly[kind[number], self._census.program_of[rank]]
        return np.bincount(number, found, len(sets.sizes)) > 0

    def _candidates(self, sets: _Sets, batches: Indices) -> tuple[Indices, Indices]:
        """By set the ranks that may take part in all of it: (sets, ranks), those of its smallest communication."""
        which = np.repeat(np.arange(len(sets.sizes)), sets.sizes)
        # of two communications of one batch no rank takes part in both
        twice = np.zeros(len(sets.sizes), np.bool_)
        twice[which[1:][(batches[1:] == batches[:-1]) & (which[1:] == which[:-1])]] = True
        begins, sizes, ranks = self._partners
        smallest = sets.members[np.lexsort((sizes[sets.members], which))[sets.begins]][~twice]
        return (
            np.repeat(np.flatnonzero(~twice), sizes[smallest]),
            ranks[places(begins[smallest], sizes[smallest])],
        )

    @cached_property
    def _shared(self) -> Flags:
        """By place in the list of what lies on what: whether several communications lie on that link."""
        one = np.zeros(self._links.max(initial=0) + 1, np.int64)
        one[self._links] = self._communications
        several = np.zeros(len(one), np.bool_)
        several[self._links[self._communications != one[self._links]]] = True
        return several[self._links]

    @cached_property
    def _partners(self) -> tuple[Indices, Indices, Indices]:
        """By communication where its partners begin, and how many they are; and all partners."""
        batches = self._census.batches
        none = np.zeros(0, np.int64)
        sizes = np.concatenate([none, *(np.full(len(batch.ranks), batch.ranks.shape[1]) for batch in batches)])
        return np.cumsum(sizes) - sizes, sizes, np.concatenate([none, *(batch.ranks.ravel() for batch in batches)])

    def _orderly(self, sets: _Sets, batches: Indices) -> tuple[Flags, Indices]:
        """By kind of set and program whether it does such communications one by one, and by set its kind."""
        told = np.add.reduceat(mixed(batches.astype(np.uint64)), sets.begins)
        _, first, kind = np.unique(told, return_index=True, return_inverse=True)
        own = (slice(begin, begin + size) for begin, size in zip(sets.begins[first], sets.sizes[first], strict=True))
        return np.array([self._one_by_one(batches[one].tolist()) for one in own]), kind

    def _one_by_one(self, numbers: Collection[int]) -> Flags:
        """By program: whether it does what is in these batches on its compute stream alone, but for one enclosed."""
        batches = [self._census.batches[number] for number in numbers]
        found = []
        for program, blocking in zip(self._census.schedule.programs, self._blocking, strict=True):
            beside = {(batch.axis, type(batch.ops[0])) for batch in batches if batch.axis not in blocking}
            found.append(not beside or (len(beside) == 1 and self._is_enclosed(program, *beside.pop())))
        return np.array(found, np.bool_)

    def _is_enclosed(self, program: Program, axis: str, kind: type[Op]) -> bool:
        """Of what stands beside the compute stream only collectives can be."""
        key = id(program), axis
        if kind is Collective and key not in self._enclosed:
            self._enclosed[key] = enclosed(program, axis)
        return kind is Collective and self._enclosed[key]


def _blocking(program: Program) -> set[str]:
    """The axes over which a program communicates on its compute stream and no other."""
    streams: defaultdict[str, set[str]] = defaultdict(set)
    for op in program.distinct():
        if isinstance(op, Copy):
            streams[COPIES].add(op.stream)
        elif isinstance(op, Collective | Send | Recv):
            streams[op.over].add(op.stream)
    return {axis for axis, used in streams.items() if used == {"compute"}}
