"""A program as the engine issues it: per stream, runs of ops with all names resolved to numbers.

What blocks of one template have in common, a `Run`, is worked out once; a `Turn` is a run in its place in the program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.engine.awaited import Awaited
from simulator.engine.braid import Pattern
from simulator.hashing import Indices
from simulator.schedule import Block, Collective, Compute, Copy, Op, Program, Recv, Send


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Ops of one stream that begin one after the other with nothing from outside between them.

    *ops* are their places in *template*, the ops of a block. Their durations are known beforehand: computations *on*
    the ``gpu`` or ``host``, and collectives that share nothing with anyone, which a GPU's other users do not slow down.
    The *pattern* says which is which; what it has beside the main line stands on a stream of its own, and nothing but
    this run waits for it. Some collectives may tie the run to those of other ranks; the first of them is the *tie*.

    A communication with partners is a run of its own, *op*, and *meets*. *waits* are the places of ops on other streams
    of the block that must have ended; *watched*: an op of another stream waits for the *last*, at that place.
    """

    template: tuple[Op, ...]
    ops: tuple[int, ...]
    waits: tuple[int, ...]
    watched: bool
    op: Op
    last: int
    on: str
    pattern: Pattern
    meets: bool
    tie: Op | None


class Turn(NamedTuple):
    """*run* with its block beginning at the op numbered *first*; *waits* are the numbers of ops that must have ended.

    *meeting* says how the partners of a communication find it: (what they all call it, how many of that came before).
    It is the *nth* turn of its run in a step, from 0.
    """

    run: Run
    first: int
    waits: tuple[int, ...]
    meeting: tuple[object, ...] | None = None
    nth: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Issue:
    """The *streams* of a program by name, with so many *ops*; of each of the *runs* the first ops of its blocks.

    *shares*: its computations meet others, or collectives' SMs, on the GPU.
    """

    streams: dict[str, tuple[Turn, ...]]
    ops: int
    shares: bool
    runs: Mapping[Run, Sequence[int]]

    def number(self, turn: Turn, step: int) -> int:
        """The number of *turn* in *step* among all turns of its run."""
        return step * len(self.runs[turn.run]) + turn.nth

    def places(self, run: Run, numbers: Indices) -> tuple[Indices, Indices]:
        """Of the turns *numbers* of *run*: the first ops of their blocks, and the steps."""
        steps, nth = np.divmod(numbers, len(self.runs[run]))
        return np.array(self.runs[run])[nth], steps


def issue(
    program: Program, collectives_take_sms: bool, private: Collection[str] = (), tying: str | None = None
) -> Issue:
    """Resolve *program*.

    *collectives_take_sms*: its transport lets collectives slow computation. *private* axes are those whose collectives
    share nothing with anyone (`simulator.engine.folding`), and are `enclosed`; so are those of the axis *tying*, but
    several ranks take part in them.
    """
    private = {*private, tying} if tying is not None else private
    sides = {id(ops): _side(ops, private) for ops, _ in program.templates()}
    awaited = Awaited(program, sides)
    runs = {
        id(ops): _runs(ops, awaited.watched[id(ops)], awaited.starters[id(ops)], private, sides[id(ops)], tying)
        for ops, _ in program.templates()
    }
    meetings, firsts = _Meetings(), defaultdict[Run, list[int]](list)
    streams: dict[str, list[Turn]] = {}
    for number, block in enumerate(program.blocks):
        first, outside = awaited.starts[number], awaited.outside[number]
        for run in runs[id(block.ops)]:
            own = tuple(first + place for place in run.waits)
            waits = own + tuple(outside.get(run.ops[0], ())) if outside else own
            meeting = meetings.of(block, run.op) if run.meets else None
            streams.setdefault(run.op.stream, []).append(Turn(run, first, waits, meeting, len(firsts[run])))
            firsts[run].append(first)
    return Issue(
        {name: tuple(turns) for name, turns in streams.items()},
        len(program.ops),
        _shares(program, collectives_take_sms, private),
        firsts,
    )


def enclosed(program: Program, axis: str) -> bool:
    """Whether all collectives over *axis* that do not block stand beside a run, forked and joined by it.

    A template may have one such stream. What blocks is not issued between the fork and the join.
    """
    sides = {id(ops): _side(ops, (axis,)) for ops, _ in program.templates()}
    if not any(sides.values()):
        return not any(_beside(op, axis) for op in program.distinct())
    if any(_beside(op, axis) for ops, _ in program.templates() for n, op in enumerate(ops) if n not in sides[id(ops)]):
        return False
    awaited = Awaited(program, sides)
    return all(
        sum(
            len(run.ops) - run.pattern.main
            for run in _runs(ops, awaited.watched[id(ops)], awaited.starters[id(ops)], (axis,), side)
        )
        == len(side)
        and not awaited.watched[id(ops)] & side
        for ops, _ in program.templates()
        if (side := sides[id(ops)])
    )


def _beside(op: Op, axis: str) -> bool:
    return isinstance(op, Collective) and op.over == axis and op.stream != "compute"


def _side(ops: Sequence[Op], private: Collection[str]) -> frozenset[int]:
    """The places of *private* collectives on a stream of a template that has nothing else, if there is one such."""
    streams: dict[str, list[int]] = {}
    for place, op in enumerate(ops):
        streams.setdefault(op.stream, []).append(place)
    found = [
        places
        for name, places in streams.items()
        if name != "compute" and all(_is_private(ops[place], private) for place in places)
    ]
    return frozenset(found[0]) if len(found) == 1 else frozenset()


def _is_private(op: Op, private: Collection[str]) -> bool:
    return isinstance(op, Collective) and op.over in private


def _shares(program: Program, collectives_take_sms: bool, private: Collection[str]) -> bool:
    computing = {op.stream for op in program.distinct() if isinstance(op, Compute) and op.on == "gpu"}
    return len(computing) > 1 or (
        collectives_take_sms
        and any(
            isinstance(op, Collective) and op.stream not in computing and op.over not in private
            for op in program.distinct()
        )
    )


def _places(ops: Sequence[Op]) -> dict[str, int]:
    return {op.name: place for place, op in enumerate(ops)}


def _runs(
    ops: tuple[Op, ...],
    watched: Collection[int],
    starters: Collection[int],
    private: Collection[str],
    side: Collection[int],
    tying: str | None = None,
) -> list[Run]:
    """The runs of the ops of a template, those of each stream in order of issue; *side* stands beside its run."""
    places, joined = _places(ops), _joined(ops, side)
    streams: dict[str, list[int]] = {}
    for place, op in enumerate(ops):
        if place not in side:
            streams.setdefault(op.stream, []).append(place)

    def timed(place: int) -> bool:
        op = ops[place]
        return (isinstance(op, Compute) and op.on == "gpu") or _is_private(op, private)

    def run(part: Sequence[int]) -> Run:
        first, last = ops[part[0]], ops[part[-1]]
        waits = (places[name] for name in first.after if name in places)
        own = set(part)
        beside = sorted(place for n in part for place, forks in joined.get(n, ()) if timed(n) and forks <= own)
        whole = (*part, *beside)
        tied = tuple(tying is not None and _is_private(ops[place], (tying,)) for place in whole)
        return Run(
            template=ops,
            ops=whole,
            waits=tuple(place for place in waits if ops[place].stream != first.stream and place not in side),
            watched=part[-1] in watched,
            op=last,
            last=part[-1],
            on=last.on if isinstance(last, Compute) else "gpu",
            pattern=Pattern(
                main=len(part),
                steady=tuple(_is_private(ops[place], private) for place in whole),
                tied=tied,
                after=_across(ops, whole, set(beside)) if beside else ((),) * len(whole),
            ),
            meets=isinstance(last, Collective | Send | Recv | Copy) and not _is_private(last, private),
            tie=next((ops[place] for place, is_tied in zip(whole, tied, strict=True) if is_tied), None),
        )

    def together(before: int, place: int) -> bool:
        return timed(before) and timed(place) and place not in starters and before not in watched

    return [run(part) for own in streams.values() for part in _parts(own, together)]


def _joined(ops: Sequence[Op], side: Collection[int]) -> dict[int, list[tuple[int, set[int]]]]:
    """By place of the op that waits for them: the places of *side*, each with those of the ops that it begins behind.

    Left out is what waits for another template, for nothing, or is awaited only after another collective has blocked.
    """
    places, joins = _places(ops), dict[int, int]()
    for n, op in enumerate(ops):
        if n not in side:
            for name in op.after:
                if name in places and places[name] in side:
                    joins.setdefault(places[name], n)
    joined: dict[int, list[tuple[int, set[int]]]] = {}
    for place, join in joins.items():
        forks = {places[name] for name in ops[place].after if name in places} - set(side)
        between = (ops[n] for n in range(max(forks, default=join) + 1, join) if n not in side)
        blocked = any(isinstance(op, Collective) and op.stream == ops[join].stream for op in between)
        if forks and not blocked and all(name in places for name in ops[place].after):
            joined.setdefault(join, []).append((place, forks))
    return joined


def _across(ops: Sequence[Op], whole: Sequence[int], beside: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """By op of a run the numbers in it of those that it waits for on the other stream."""
    number = {ops[place].name: index for index, place in enumerate(whole)}

    def across(place: int) -> Iterator[int]:
        for name in ops[place].after:
            if name in number and (whole[number[name]] in beside) != (place in beside):
                yield number[name]

    return tuple(tuple(across(place)) for place in whole)


def _parts(places: Sequence[int], together: Callable[[int, int], bool]) -> Iterator[list[int]]:
    part = [places[0]]
    for before, place in pairwise(places):
        if not together(before, place):
            yield part
            part = []
        part.append(place)
    yield part


class _Meetings:
    """What the partners of each communication also call it, and how many of that came before.

    Of a collective its stream, of a message its action, of a copy its name.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[object, ...], int] = {}

    def of(self, block: Block, op: Op) -> tuple[object, ...]:
        """The meeting of the next such *op* of a program, in *block*."""
        where: tuple[object, ...] = ()
        common: object
        if isinstance(op, Collective):
            where, common = (op.over,), op.stream
        elif isinstance(op, Send | Recv):
            where, common = (op.over, op.peer, isinstance(op, Send)), op.action and block.action(op.action)
        else:
            common = block.name(op.name)
        before = self._counts.get((where, common), 0)
        self._counts[where, common] = before + 1
        return common, before
