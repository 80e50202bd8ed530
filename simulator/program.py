"""A program is what every rank of one role does, in order of issue.

Most of it is the same for every micro-batch, so it is kept as blocks: the ops of one action, written once as a template
that leaves the micro-batch blank, and stamped with each. Whoever reads `Program.ops` need not know; a pass that changes
each template once is as quick for a thousand micro-batches as for one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import TypeVar, overload

from simulator.ops import Op
from simulator.order import BLANK, BLANK_PRINTED, Action

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Block:
    """*ops* that follow one another, stamped with *micro_batch* where they leave it blank; None: they stand as written.

    Blocks of which the same is done share one tuple of ops.
    """

    ops: tuple[Op, ...]
    micro_batch: int | None = None

    def name(self, name: str) -> str:
        """*name*, of an op of the template, as it is here."""
        return name if self.micro_batch is None else name.replace(BLANK_PRINTED, str(self.micro_batch))

    def names(self, names: Sequence[str]) -> list[str]:
        """*names* as they are here, all at once."""
        if self.micro_batch is None or not names:
            return list(names)
        return "\n".join(names).replace(BLANK_PRINTED, str(self.micro_batch)).split("\n")

    def stamped(self, op: Op) -> Op:
        """*op*, one of the template's, as it is here."""
        if self.micro_batch is None:
            return op
        action = self.action(op.action) if op.action else None
        return replace(op, name=self.name(op.name), action=action, after=tuple(map(self.name, op.after)))

    def action(self, action: Action) -> Action:
        """*action*, of the template, as it is here."""
        return action._replace(micro_batch=self.micro_batch) if action.micro_batch == BLANK else action

    def written_out(self) -> Block:
        """The same block without blanks."""
        ops = tuple(map(self.stamped, self.ops))
        return Block(ops, self.micro_batch)


class Stamped(Sequence[Op]):
    """The ops of *blocks*, one after the other, made when they are read."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = tuple(blocks)
        self.starts = [0, *accumulate(len(block.ops) for block in self.blocks)]

    @cached_property
    def _all(self) -> tuple[Op, ...]:
        return tuple(chain.from_iterable(map(block.stamped, block.ops) for block in self.blocks))

    @cached_property
    def templates(self) -> list[tuple[tuple[Op, ...], int]]:
        """The distinct ops of blocks in order of first use, and how many blocks have each."""
        count = Counter(id(block.ops) for block in self.blocks)
        first = {id(block.ops): block.ops for block in reversed(self.blocks)}
        return [(first[number], times) for number, times in count.items()]

    def __len__(self) -> int:
        return self.starts[-1]

    def __iter__(self) -> Iterator[Op]:
        return iter(self._all)

    @overload
    def __getitem__(self, index: int) -> Op: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Op, ...]: ...
    def __getitem__(self, index: int | slice) -> Op | tuple[Op, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        index = range(len(self))[index]
        number = bisect_right(self.starts, index) - 1
        block = self.blocks[number]
        return block.stamped(block.ops[index - self.starts[number]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return repr(self._all)


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank of one *role* does: *ops* in order of issue, and the bytes *resident* all step, by category.

    *on* is where its ranks live: ``gpu``, or ``host`` (a parameter server).
    """

    role: str
    ops: Sequence[Op]
    resident: Mapping[str, float] = field(default_factory=dict)
    on: str = "gpu"

    def __str__(self) -> str:
        return self.printed()

    def printed(self, marked: int | None = None, around: int = 6) -> str:
        """One line per op, in order of issue; with *marked*, that op stands out among *around* lines on either side."""
        shown = range(len(self.ops))
        if marked is not None:
            shown = shown[max(0, marked - around) : marked + around + 1]
        lines = [f"{'>>' if i == marked else '  '} {self.ops[i]}" for i in shown]
        before, after = shown.start, len(self.ops) - shown.stop
        head = [f"program {self.role}"] + ([f"   ... {before} ops before"] if before else [])
        return "\n".join([*head, *lines, *([f"   ... {after} ops after"] if after else [])])

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that the ops are kept in; ops that were never stamped are one."""
        return self.ops.blocks if isinstance(self.ops, Stamped) else (Block(tuple(self.ops)),)

    def templates(self) -> list[tuple[tuple[Op, ...], int]]:
        """The distinct ops of blocks in order of first use, blanks left blank, and how many blocks have each."""
        return self.ops.templates if isinstance(self.ops, Stamped) else [(tuple(self.ops), 1)]

    def distinct(self) -> Iterator[Op]:
        """The ops of each of the `templates` once."""
        return chain.from_iterable(ops for ops, _ in self.templates())

    def tabulated(self, of: Callable[[Op], _T]) -> list[_T]:
        """What *of* says of each op, by index; it is asked once for each op of a template, and sees that."""
        known = {id(ops): [of(op) for op in ops] for ops, _ in self.templates()}
        return list(chain.from_iterable(known[id(block.ops)] for block in self.blocks))

    def streams(self) -> dict[str, list[Op]]:
        """The ops of each stream in order of issue, streams in order of first use."""
        streams: dict[str, list[Op]] = {}
        for op in self.ops:
            streams.setdefault(op.stream, []).append(op)
        return streams

    def weave(self, change: Callable[[Op], Iterable[Op]]) -> Program:
        """The program in which every op gives way to what *change* makes of it.

        What replaces an op leaves the op's name on its last part, so that no `after` need be touched. *change* is asked
        once for each op of a template; where it must tell micro-batches apart, `written_out` goes before.
        """
        known = {id(ops): tuple(new for op in ops for new in change(op)) for ops, _ in self.templates()}
        return self.blockwise(Block(known[id(block.ops)], block.micro_batch) for block in self.blocks)

    def written_out(self, first: int = 0) -> Program:
        """The program whose blocks from the one numbered *first* on have no blanks."""
        blocks = [block if number < first else block.written_out() for number, block in enumerate(self.blocks)]
        return self.blockwise(blocks)

    def by_micro_batch(self, change: Callable[[Program], Program]) -> Program:
        """The program whose blocks of one micro-batch, taken together, give way to what *change* makes of them.

        *change* sees the templates, and is asked once for all micro-batches for which the same is done; it must keep
        blocks apart, as `weave` and `renewed` do. Blocks of no micro-batch are taken together too.
        """
        of: dict[int | None, list[int]] = {}
        for number, block in enumerate(self.blocks):
            of.setdefault(block.micro_batch, []).append(number)
        known: dict[Hashable, list[tuple[Op, ...]]] = {}
        new: list[Block] = list(self.blocks)
        for micro_batch, numbers in of.items():
            own = [Block(self.blocks[number].ops) for number in numbers]
            same = tuple(id(block.ops) for block in own)
            if same not in known:
                known[same] = [block.ops for block in change(replace(self, ops=Stamped(own))).blocks]
            for number, ops in zip(numbers, known[same], strict=True):
                new[number] = Block(ops, micro_batch)
        return self.blockwise(new)

    def renewed(self, ops: Sequence[Op]) -> Program:
        """The program that has *ops*, one for one, in place of its own, in blocks as before."""
        given = iter(ops)
        return self.blockwise(Block(tuple(next(given) for _ in block.ops), block.micro_batch) for block in self.blocks)

    def blockwise(self, blocks: Iterable[Block]) -> Program:
        """The program whose ops are those of *blocks*."""
        return replace(self, ops=Stamped(blocks))
