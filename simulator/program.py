"""A program is what every rank of one role does, in order of issue.

Most of it is the same for every micro-batch, so it is kept as blocks: the ops of one action, written once as a template
that leaves the micro-batch blank, and stamped with each. Whoever reads `Program.ops` need not know; a pass that changes
each template once is as quick for a thousand micro-batches as for one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from simulator.errors import ScheduleError
from simulator.ops import Op
from simulator.order import BLANK, BLANK_PRINTED, Action

_T = TypeVar("_T")
_Name = TypeVar("_Name")

Numbers = npt.NDArray[np.int64]


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
        return Action(action.phase, action.stage, self.micro_batch) if action.micro_batch == BLANK else action

    def written_out(self) -> Block:
        """The same block without blanks."""
        ops = tuple(map(self.stamped, self.ops))
        return Block(ops, self.micro_batch)


class Stamped(Sequence[Op]):
    """The ops of blocks, one after the other, made when they are read.

    Kept as columns by block: *which* of the *templates*, which stand in order of first use, it has, and its one of
    *micro_batches*, `BLANK` where it stands as written. *starts*: the numbers of their first ops, and of all ops.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        blocks = list(blocks)
        first = {id(block.ops): block.ops for block in blocks}
        number = {template: place for place, template in enumerate(first)}
        which = np.array([number[id(block.ops)] for block in blocks], np.int64)
        self._keep(tuple(first.values()), which, _stamps(block.micro_batch for block in blocks))

    @classmethod
    def called(cls, templates: Mapping[_Name, tuple[Op, ...]], blocks: Sequence[tuple[_Name, int | None]]) -> Stamped:
        """From the name of each block's template, and its micro-batch."""
        number = {name: place for place, name in enumerate(templates)}
        which = np.array([number[name] for name, _ in blocks], np.int64)
        return cls.of(list(templates.values()), which, _stamps(stamp for _, stamp in blocks))

    @classmethod
    def of(cls, templates: Sequence[tuple[Op, ...]], which: Numbers, micro_batches: Numbers) -> Stamped:
        """From its columns; *templates* may be more than there are in use, and in any order."""
        used, first = np.unique(which, return_index=True)
        in_use = used[first.argsort()]
        place = np.zeros(len(templates), np.int64)
        place[in_use] = range(len(in_use))
        made = cls.__new__(cls)
        made._keep(tuple(templates[number] for number in in_use), place[which], micro_batches)
        return made

    def _keep(self, templates: tuple[tuple[Op, ...], ...], which: Numbers, micro_batches: Numbers) -> None:
        self.templates, self.which, self.micro_batches = templates, which, micro_batches
        lengths = np.array([len(ops) for ops in templates], np.int64)
        self.starts: Numbers = np.concatenate(([0], lengths[which].cumsum()))

    @cached_property
    def places(self) -> Numbers:
        """By op its place among those of all templates, one template after the other."""
        begins = np.cumsum([0, *map(len, self.templates)])[self.which]
        return np.repeat(begins - self.starts[:-1], np.diff(self.starts)) + np.arange(len(self))

    def block(self, number: int) -> Block:
        """The block of that number."""
        micro_batch = int(self.micro_batches[number])
        return Block(self.templates[self.which[number]], None if micro_batch == BLANK else micro_batch)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All of them."""
        return tuple(map(self.block, range(len(self.which))))

    @cached_property
    def _all(self) -> tuple[Op, ...]:
        return tuple(chain.from_iterable(map(block.stamped, block.ops) for block in self.blocks))

    def __len__(self) -> int:
        return int(self.starts[-1])

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
        number = int(self.starts.searchsorted(index, "right")) - 1
        block = self.block(number)
        return block.stamped(block.ops[index - int(self.starts[number])])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return repr(self._all)


def _among(stamps: Numbers, micro_batches: Iterable[int | None]) -> npt.NDArray[np.bool_]:
    return np.isin(stamps, _stamps(micro_batches))


def _stamps(micro_batches: Iterable[int | None]) -> Numbers:
    return np.array([BLANK if number is None else number for number in micro_batches], np.int64)


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

    def broken(self, index: int, law: str) -> ScheduleError:
        """The error that the op of that *index* breaks a *law*; it shows the program with the op marked."""
        return ScheduleError(f"{self.role}, {self.ops[index].name}: {law}\n{self.printed(index)}")

    @property
    def stamped(self) -> Stamped:
        """The ops as they are kept; those that were never stamped are one block."""
        return self.ops if isinstance(self.ops, Stamped) else Stamped((Block(tuple(self.ops)),))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that the ops are kept in."""
        return self.stamped.blocks

    def templates(self) -> list[tuple[tuple[Op, ...], int]]:
        """The distinct ops of blocks in order of first use, blanks left blank, and how many blocks have each."""
        ops = self.stamped
        return list(zip(ops.templates, np.bincount(ops.which).tolist(), strict=True))

    def distinct(self) -> Iterator[Op]:
        """The ops of each of the `templates` once."""
        return chain.from_iterable(ops for ops, _ in self.templates())

    def tabulated(self, of: Callable[[Op], _T]) -> list[_T]:
        """What *of* says of each op, by index; it is asked once for each op of a template, and sees that."""
        ops = self.stamped
        known = [list(map(of, template)) for template in ops.templates]
        return list(chain.from_iterable(known[number] for number in ops.which.tolist()))

    def column(self, of: Callable[[Op], float], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
        """`tabulated` as an array."""
        ops = self.stamped
        return np.array([of(op) for template in ops.templates for op in template], dtype)[ops.places]

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
        ops = self.stamped
        woven = [tuple(new for op in template for new in change(op)) for template in ops.templates]
        return self.blockwise(Stamped.of(woven, ops.which, ops.micro_batches))

    def written_out(self, micro_batches: Collection[int | None] | None = None) -> Program:
        """The program whose blocks of these *micro_batches*, all unless given, have no blanks."""
        ops = self.stamped
        which = ops.which.copy()
        meant = np.ones(len(which), np.bool_) if micro_batches is None else _among(ops.micro_batches, micro_batches)
        written = [ops.block(number).written_out().ops for number in np.flatnonzero(meant).tolist()]
        which[meant] = range(len(ops.templates), len(ops.templates) + len(written))
        return self.blockwise(Stamped.of([*ops.templates, *written], which, ops.micro_batches))

    def by_micro_batch(self, change: Callable[[Program], Program]) -> Program:
        """The program whose blocks of one micro-batch, taken together, give way to what *change* makes of them.

        *change* sees the templates, and is asked once for all micro-batches for which the same is done; it must keep
        blocks apart, as `weave` and `renewed` do. Blocks of no micro-batch are taken together too.
        """
        ops = self.stamped
        together = ops.micro_batches.argsort(kind="stable")
        known: dict[bytes, Numbers] = {}
        templates: list[tuple[Op, ...]] = []
        which = ops.which.copy()
        for numbers in np.split(together, np.flatnonzero(np.diff(ops.micro_batches[together])) + 1):
            same = ops.which[numbers].tobytes()
            if same not in known:
                own = Stamped.of(ops.templates, ops.which[numbers], np.full(len(numbers), BLANK))
                new = change(self.blockwise(own)).stamped
                known[same] = new.which + len(templates)
                templates += new.templates
            which[numbers] = known[same]
        return self.blockwise(Stamped.of(templates, which, ops.micro_batches))

    def renewed(self, ops: Sequence[Op]) -> Program:
        """The program that has *ops*, one for one, in place of its own, in blocks as before."""
        given = iter(ops)
        return self.blockwise(
            Stamped(Block(tuple(next(given) for _ in block.ops), block.micro_batch) for block in self.blocks)
        )

    def blockwise(self, ops: Stamped) -> Program:
        """The program of these ops."""
        return replace(self, ops=ops)
