"""Dependencies between the streams of a program, resolved from names to indices by template.

All blocks of a template wait for the same names; the micro-batch decides which op has the name. So each name is looked
up once for all blocks of a template.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER_TEXT
from clustersim.simulator.schedule.program import Program, TemplatedOps

Integers = npt.NDArray[np.int64]


class Dependencies(NamedTuple):
    """Arrays of one length: op ``waiting[i]`` waits for op ``awaited[i]`` of another stream. Ops are indices."""

    waiting: Integers
    awaited: Integers


def dependencies(program: Program) -> Dependencies:
    """All dependencies between streams of *program*, in order of the waiting op, then of its `after`.

    Dependencies within a stream are left out: the order of the stream implies them.
    """
    names = OpsByName(program.templated)
    found = [np.empty((2, 0), np.int64)]
    for number, template in enumerate(names.ops.templates):
        blocks = names.blocks_of(number)
        # within a template by place, as Python integers: most dependencies are of ops that only one block has
        own = [
            (place, awaited, name)
            for place, op in enumerate(template)
            for name in op.after
            if (awaited := names.place(number, name)) is None or template[awaited].stream != op.stream
        ]
        found += _found(names, number, blocks, own)
    waiting, awaited = np.concatenate(found, axis=1)
    order = np.argsort(waiting, kind="stable")
    return Dependencies(waiting[order], awaited[order])


def _found(
    names: OpsByName, template: int, blocks: Integers, own: Sequence[tuple[int, int | None, str]]
) -> Iterator[Integers]:
    """Yield arrays of two rows, the ops of *blocks* and the ops that they wait for, in order of `after`.

    *own*: by dependency the place of the op, and the place of the other in *template* or None, and its name.
    """
    starts, ops = names.ops.starts[blocks], names.ops.templates[template]
    for inside, several in groupby(own, key=lambda one: one[1] is not None):
        if inside:
            places = np.array([one[:2] for one in several], np.int64).T
            yield (places[:, :, None] + starts).reshape(2, -1)
            continue
        for place, _, name in several:
            for block, stream, awaited in names.find(template, name, blocks):
                if stream != ops[place].stream:
                    yield np.stack([names.ops.starts[block] + place, awaited])


_NOWHERE: Mapping[int, int] = {}


class OpsByName:
    """Finds the ops of a program by their names in templates, in which a placeholder stands for the micro-batch."""

    def __init__(self, ops: TemplatedOps) -> None:
        self.ops = ops
        # by name, the place of the op in each template that has it
        self._found: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for number, template in enumerate(ops.templates):
            for place, op in enumerate(template):
                self._found[op.name][number] = place
        self._block_of: dict[int, Integers] = {}

    def awaited(self, index: int) -> list[int]:
        """The ops of other streams that the op of that *index* waits for, in order of `after`."""
        block = int(np.searchsorted(self.ops.starts, index, "right")) - 1
        template = int(self.ops.which[block])
        op = self.ops.templates[template][index - int(self.ops.starts[block])]
        found = [place for name in op.after for place in self.find(template, name, np.array([block]))]
        return [int(awaited[0]) for _, stream, awaited in found if stream != op.stream]

    def blocks_of(self, template: int) -> Integers:
        """The numbers of the blocks of *template*."""
        return np.flatnonzero(self.ops.which == template)

    def place(self, template: int, name: str) -> int | None:
        """The place in *template* of its op called *name*; None if it has none."""
        return self._found.get(name, _NOWHERE).get(template)

    def find(self, template: int, name: str, blocks: Integers) -> Iterator[tuple[Integers, str, Integers]]:
        """The ops called *name* in an `after` of *blocks*, which are all of *template*.

        Yield (some of the blocks, stream of the op, index of the op for each of these blocks).
        """
        places = self._found.get(name, _NOWHERE)
        if template in places:
            place = places[template]
            yield blocks, self.ops.templates[template][place].stream, self.ops.starts[blocks] + place
            return
        unresolved = np.ones(len(blocks), np.bool_)
        for other, place in places.items():
            where = self._blocks(other, name, blocks)
            met = where >= 0
            unresolved &= ~met
            if met.any():
                yield blocks[met], self.ops.templates[other][place].stream, self.ops.starts[where[met]] + place
        for block in blocks[unresolved].tolist():
            # one of the two names has a placeholder and the other does not
            stream, index = self._materialised[self.ops.block(block).name(name)]
            yield np.array([block]), stream, np.array([index])

    def _blocks(self, template: int, name: str, waiting: Integers) -> Integers:
        """For each of the blocks *waiting*, the block of *template* with the op that it calls *name*; -1 if none."""
        if PLACEHOLDER_TEXT not in name:
            return np.full(len(waiting), self.blocks_of(template)[0])
        if template not in self._block_of:
            blocks = self.blocks_of(template)
            # blocks of no micro-batch have the number -1: the last entry is for them
            self._block_of[template] = np.full(int(self.ops.micro_batches.max()) + 2, -1)
            self._block_of[template][self.ops.micro_batches[blocks]] = blocks
        return self._block_of[template][self.ops.micro_batches[waiting]]

    @cached_property
    def _materialised(self) -> dict[str, tuple[str, int]]:
        """By name without placeholder: the stream of the op and its index."""
        own = [[op.name for op in ops] for ops in self.ops.templates]
        streams = [[op.stream for op in ops] for ops in self.ops.templates]
        found: dict[str, tuple[str, int]] = {}
        for number, (start, which) in enumerate(zip(self.ops.starts.tolist(), self.ops.which.tolist(), strict=False)):
            names = self.ops.block(number).names(own[which])
            found.update(zip(names, zip(streams[which], range(start, start + len(names)), strict=True), strict=True))
        return found
