"""Which ops of a program wait for which on other streams, with all names resolved to numbers.

A template says once what its blocks wait for; who is meant depends on the micro-batch alone. So names are looked up as
templates write them, for all blocks of one at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.order import PLACEHOLDER_TEXT
from simulator.program import Numbers, Program, TemplatedOps
from simulator.schedule import Op


class Awaited:
    """Which ops wait for which on other streams: *outside* of their block, by number of block and place in it.

    *starts* is by block the number of its first op. By template: the places of ops that are *watched* by an op of
    another stream anywhere, and of *starters*, which wait for one; what happens between a run and the collectives
    beside it, at the places *sides*, does not count.
    """

    def __init__(self, program: Program, sides: Mapping[int, Collection[int]]) -> None:
        ops = program.templated
        self.starts: list[int] = ops.starts.tolist()
        self.watched: defaultdict[int, set[int]] = defaultdict(set)
        self.starters: defaultdict[int, set[int]] = defaultdict(set)
        self.outside: list[Mapping[int, Sequence[int]]] = [{}] * len(ops.which)
        names = _Names(ops)
        for number, template in enumerate(ops.templates):
            self._within(template, sides[id(template)])
            self._beyond(names, number)

    def _within(self, ops: Sequence[Op], side: Collection[int]) -> None:
        """What ops of a template ask of others of it."""
        places = {op.name: place for place, op in enumerate(ops)}
        for place, op in enumerate(ops):
            for name in op.after:
                awaited = places.get(name)
                if awaited is not None and place not in side and awaited not in side:
                    self._note(ops, place, ops, awaited)

    def _beyond(self, names: _Names, number: int) -> None:
        """What the ops of a template ask of other blocks."""
        ops = names.ops.templates[number]
        blocks = names.blocks_of(number)
        own = {op.name for op in ops}
        waits: list[tuple[int, int, int]] = []
        for place, op in enumerate(ops):
            for name in op.after:
                for met in names.find(name, blocks) if name not in own else ():
                    if self._note(ops, place, names.ops.templates[met.template], met.place):
                        numbers = names.ops.starts[met.blocks] + met.place
                        waits += zip(met.asking.tolist(), [place] * len(numbers), numbers.tolist(), strict=True)
        found: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for block, place, awaited in waits:
            found[block][place].append(awaited)
        for block, of in found.items():
            self.outside[block] = of

    def _note(self, ops: Sequence[Op], place: int, others: Sequence[Op], awaited: int) -> bool:
        """Whether the op at *place* waits for one of another stream; both are then marked."""
        if others[awaited].stream == ops[place].stream:
            return False
        self.watched[id(others)].add(awaited)
        self.starters[id(ops)].add(place)
        return True


class _Met(NamedTuple):
    """Blocks *asking* for a name find it at *place* of the *template* that *blocks* have, one for each."""

    asking: Numbers
    template: int
    place: int
    blocks: Numbers


class _Names:
    """The names of *ops*, as templates write them: where one has a blank, a block is known by its micro-batch."""

    def __init__(self, ops: TemplatedOps) -> None:
        self.ops = ops
        self._found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, template in enumerate(ops.templates):
            for place, op in enumerate(template):
                self._found[op.name].append((number, place))
        self._at: dict[int, Numbers] = {}

    def blocks_of(self, template: int) -> Numbers:
        """The numbers of the blocks that have it."""
        return np.flatnonzero(self.ops.which == template)

    def find(self, name: str, asking: Numbers) -> Iterator[_Met]:
        """The op that each of the blocks *asking* means by *name*."""
        open_ = np.ones(len(asking), np.bool_)
        for template, place in self._found.get(name, ()):
            blocks = self._blocks(template, name, asking)
            met = blocks >= 0
            open_ &= ~met
            if met.any():
                yield _Met(asking[met], template, place, blocks[met])
        for block in asking[open_].tolist():
            # written out on one side only
            template, place, number = self._written[self.ops.block(block).name(name)]
            yield _Met(np.array([block]), template, place, np.array([number]))

    def _blocks(self, template: int, name: str, asking: Numbers) -> Numbers:
        """By block *asking* the one of *template* that has the op of that *name*, -1 if there is none."""
        if PLACEHOLDER_TEXT not in name:
            return np.full(len(asking), self.blocks_of(template)[0])
        if template not in self._at:
            blocks = self.blocks_of(template)
            # the last place is for blocks of no micro-batch, whose stamp is -1
            self._at[template] = np.full(int(self.ops.micro_batches.max()) + 2, -1)
            self._at[template][self.ops.micro_batches[blocks]] = blocks
        return self._at[template][self.ops.micro_batches[asking]]

    @cached_property
    def _written(self) -> dict[str, tuple[int, int, int]]:
        """By name as it is in the program: its template, its place there, its block."""
        return {
            block.name(op.name): (int(self.ops.which[number]), place, number)
            for number, block in enumerate(self.ops.blocks)
            for place, op in enumerate(block.ops)
        }
