"""A program is the list of ops of every rank of one role, in order of issue.

Most ops are the same for every micro-batch, so a program is stored as blocks. A block is the ops of one action: a
template with a placeholder for the micro-batch, and the micro-batch that replaces it. `Program.ops` reads as plain ops.
A pass changes each template once, so its cost does not grow with the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, PLACEHOLDER_TEXT, Action
from clustersim.simulator.schedule.records import changed

_T = TypeVar("_T")
_Name = TypeVar("_Name")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OpBlock:
    """A template, *ops* in order, and the *micro_batch* that replaces its placeholders; None where it has none.

    Blocks with equal content share one tuple of ops.
    """

    ops: tuple[Op, ...]
    micro_batch: int | None = None

    def name(self, name: str) -> str:
        """The op name *name* of the template, with the placeholder replaced."""
        return name if self.micro_batch is None else name.replace(PLACEHOLDER_TEXT, str(self.micro_batch))

    def names(self, names: Sequence[str]) -> list[str]:
        """`name` for many names at once."""
        if self.micro_batch is None or not names:
            return list(names)
        return "\n".join(names).replace(PLACEHOLDER_TEXT, str(self.micro_batch)).split("\n")

    def fill_in(self, op: Op) -> Op:
        """The op *op* of the template, with the placeholder replaced in its name, action and `after`."""
        if self.micro_batch is None:
            return op
        action = self.action(op.action) if op.action else None
        return changed(op, name=self.name(op.name), action=action, after=tuple(map(self.name, op.after)))

    def action(self, action: Action) -> Action:
        """The action *action* of the template, with the placeholder replaced."""
        return Action(action.phase, action.stage, self.micro_batch) if action.micro_batch == PLACEHOLDER else action

    def materialise(self) -> OpBlock:
        """The same block without placeholders."""
        ops = tuple(map(self.fill_in, self.ops))
        return OpBlock(ops, self.micro_batch)


class TemplatedOps(Sequence[Op]):
    """The ops of a list of blocks, built when they are read.

    Stored as columns, one entry a block: *which*, the number of its template in *templates* (in order of first use);
    *micro_batches*, `PLACEHOLDER` where the block has none; *starts*, the index of its first op, then the op count.
    """

    def __init__(self, blocks: Iterable[OpBlock]) -> None:
        blocks = list(blocks)
        first = {id(block.ops): block.ops for block in blocks}
        number = {template: place for place, template in enumerate(first)}
        which = np.array([number[id(block.ops)] for block in blocks], np.int64)
        self._keep(tuple(first.values()), which, _numbers(block.micro_batch for block in blocks))

    @classmethod
    def from_names(
        cls, templates: Mapping[_Name, tuple[Op, ...]], blocks: Sequence[tuple[_Name, int | None]]
    ) -> TemplatedOps:
        """Build from (name of the template, micro-batch) of each block."""
        number = {name: place for place, name in enumerate(templates)}
        which = np.array([number[name] for name, _ in blocks], np.int64)
        return cls.from_columns(list(templates.values()), which, _numbers(micro_batch for _, micro_batch in blocks))

    @classmethod
    def from_columns(cls, templates: Sequence[tuple[Op, ...]], which: Numbers, micro_batches: Numbers) -> TemplatedOps:
        """Build from columns. *templates* may be in any order and include unused ones."""
        used = list(dict.fromkeys(which.tolist()))
        if used != list(range(len(templates))):
            place = np.zeros(len(templates), np.int64)
            place[used] = range(len(used))
            which = place[which]
        made = cls.__new__(cls)
        made._keep(tuple(templates[number] for number in used), which, micro_batches)
        return made

    def mapped(self, templates: Sequence[tuple[Op, ...]]) -> TemplatedOps:
        """The same blocks with these *templates*, one for each of its own."""
        made = TemplatedOps.__new__(TemplatedOps)
        made._keep(tuple(templates), self.which, self.micro_batches)
        return made

    def _keep(self, templates: tuple[tuple[Op, ...], ...], which: Numbers, micro_batches: Numbers) -> None:
        self.templates, self.which, self.micro_batches = templates, which, micro_batches
        self._of_kinds: dict[tuple[type[Op], ...], tuple[list[int], list[Op]]] = {}
        self._known: dict[Callable[[TemplatedOps], Any], Any] = {}
        lengths = np.array([len(ops) for ops in templates], np.int64)
        self.starts: Numbers = np.concatenate(([0], lengths[which].cumsum()))

    @cached_property
    def places(self) -> Numbers:
        """For each op, its index in the concatenation of all templates."""
        begins = np.cumsum([0, *map(len, self.templates)])[self.which]
        return np.repeat(begins - self.starts[:-1], np.diff(self.starts)) + np.arange(len(self))

    def of_kinds(self, kinds: tuple[type[Op], ...]) -> tuple[list[int], list[Op]]:
        """The indices, in the concatenation of all templates, of the ops of *kinds*, and these ops."""
        if kinds not in self._of_kinds:
            every = enumerate(chain.from_iterable(self.templates))
            found = [(place, op) for place, op in every if isinstance(op, kinds)]
            self._of_kinds[kinds] = [place for place, _ in found], [op for _, op in found]
        return self._of_kinds[kinds]

    def once(self, find: Callable[[TemplatedOps], _T]) -> _T:
        """What *find* returns for these ops, found once."""
        if find not in self._known:
            self._known[find] = find(self)
        return cast("_T", self._known[find])

    def block(self, number: int) -> OpBlock:
        """The block with that number."""
        micro_batch = int(self.micro_batches[number])
        return OpBlock(self.templates[self.which[number]], None if micro_batch == PLACEHOLDER else micro_batch)

    def of_micro_batches(self) -> Iterator[Numbers]:
        """The numbers of the blocks of each micro-batch, ascending; those of no micro-batch first."""
        together = self.micro_batches.argsort(kind="stable")
        ends = np.flatnonzero(np.diff(self.micro_batches[together])) + 1
        return (together[begin:end] for begin, end in pairwise([0, *ends.tolist(), len(together)]))

    @cached_property
    def blocks(self) -> tuple[OpBlock, ...]:
        """All blocks, in order."""
        return tuple(map(self.block, range(len(self.which))))

    @cached_property
    def _all(self) -> tuple[Op, ...]:
        return tuple(chain.from_iterable(map(block.fill_in, block.ops) for block in self.blocks))

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
        return block.fill_in(block.ops[index - int(self.starts[number])])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return repr(self._all)


Names = tuple[str, ...]

UNKNOWN = "\N{BLACK SQUARE}"
"""Begins a text that stands for the name of an op of another micro-batch."""


class BlockList:
    """Collects blocks; those with one tuple of ops share a template."""

    def __init__(self) -> None:
        self._templates: dict[int, tuple[Op, ...]] = {}
        self._which: list[int] = []
        self._micro_batches: list[int] = []

    def add(self, ops: tuple[Op, ...], micro_batch: int) -> None:
        """Add a block, unless it is empty; *micro_batch* is `PLACEHOLDER` if it has none."""
        if not ops:
            return
        self._templates[id(ops)] = ops
        self._which.append(id(ops))
        self._micro_batches.append(micro_batch)

    def ops(self) -> TemplatedOps:
        """The ops of all blocks."""
        number = {template: place for place, template in enumerate(self._templates)}
        which = np.array([number[template] for template in self._which], np.int64)
        return TemplatedOps.from_columns(list(self._templates.values()), which, np.array(self._micro_batches, np.int64))


def _split(ops: Iterable[Op]) -> Iterator[tuple[Op, ...]]:
    """*ops* in runs, each op that waits for an unknown name alone."""
    run: list[Op] = []
    for op in ops:
        if any(name.startswith(UNKNOWN) for name in op.after):
            if run:
                yield tuple(run)
            yield (op,)
            run = []
        else:
            run.append(op)
    if run:
        yield tuple(run)


def _named(name: str, micro_batch: int) -> str:
    """The *name* of an op in a template with the placeholder replaced."""
    return name if micro_batch == PLACEHOLDER else name.replace(PLACEHOLDER_TEXT, str(micro_batch))


def _among(numbers: Numbers, micro_batches: Iterable[int | None]) -> npt.NDArray[np.bool_]:
    return np.isin(numbers, _numbers(micro_batches))


def _numbers(micro_batches: Iterable[int | None]) -> Numbers:
    return np.array([PLACEHOLDER if number is None else number for number in micro_batches], np.int64)


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank of one *role* does: *ops* in order of issue.

    *resident*: the bytes that are held during the whole step, by memory category. *on*: ``gpu``, or ``host`` for a
    parameter server.
    """

    role: str
    ops: Sequence[Op]
    resident: Mapping[str, float] = field(default_factory=dict)
    on: str = "gpu"

    def __str__(self) -> str:
        return self.printed()

    def printed(self, marked: int | None = None, around: int = 6) -> str:
        """One line per op, in order of issue. With *marked*, mark that op and show *around* lines on either side."""
        shown = range(len(self.ops))
        if marked is not None:
            shown = shown[max(0, marked - around) : marked + around + 1]
        lines = [f"{'>>' if i == marked else '  '} {self.ops[i]}" for i in shown]
        before, after = shown.start, len(self.ops) - shown.stop
        head = [f"program {self.role}"] + ([f"   ... {before} ops before"] if before else [])
        return "\n".join([*head, *lines, *([f"   ... {after} ops after"] if after else [])])

    def violation(self, index: int, reason: str) -> ScheduleError:
        """The error that the op of that *index* violates a check rule; it shows the program with the op marked."""
        return ScheduleError(f"{self.role}, {self.ops[index].name}: {reason}\n{self.printed(index)}")

    @property
    def templated(self) -> TemplatedOps:
        """The ops as stored; ops without templates become one block."""
        return self.ops if isinstance(self.ops, TemplatedOps) else TemplatedOps((OpBlock(tuple(self.ops)),))

    @property
    def blocks(self) -> tuple[OpBlock, ...]:
        """The blocks of the program, in order."""
        return self.templated.blocks

    def templates(self) -> list[tuple[tuple[Op, ...], int]]:
        """(template, number of blocks that use it), in order of first use."""
        ops = self.templated
        return list(zip(ops.templates, np.bincount(ops.which).tolist(), strict=True))

    def distinct(self, *kinds: type[Op]) -> Iterator[Op]:
        """The ops of each template once, placeholders kept; those of *kinds*, if any are given."""
        ops = self.templated
        return iter(ops.of_kinds(kinds)[1]) if kinds else chain.from_iterable(ops.templates)

    def computations(self) -> Iterator[Compute]:
        """The computations of each template once, placeholders kept."""
        return cast("Iterator[Compute]", self.distinct(Compute))

    def in_phase(self, phase: str) -> Iterator[Op]:
        """The ops of actions of that *phase*, of each template once, placeholders kept."""
        return (op for op in self.distinct() if op.action and op.action.phase == phase)

    @property
    def computes_on_host(self) -> bool:
        """True if an op of the program computes on a host."""
        return any(op.on == "host" for op in self.computations())

    def servers(self) -> list[str]:
        """The servers at which ops of the program execute or which they release, in order of first use."""
        return list(dict.fromkeys(op.at_server for op in self.distinct() if op.at_server is not None))

    def per_op(self, of: Callable[[Op], _T]) -> list[_T]:
        """``of(op)`` for each op, by index. *of* is called once for each op of a template, and gets that op."""
        ops = self.templated
        known = [list(map(of, template)) for template in ops.templates]
        return list(chain.from_iterable(known[number] for number in ops.which.tolist()))

    def column(
        self, of: Callable[[Any], float], dtype: npt.DTypeLike = np.float64, only: tuple[type[Op], ...] = (Op,)
    ) -> npt.NDArray[Any]:
        """`per_op` as an array; 0 for ops that are of none of the kinds *only*."""
        ops = self.templated
        where, several = ops.of_kinds(only)
        values = np.zeros(sum(map(len, ops.templates)), dtype)
        values[where] = list(map(of, several))
        return values[ops.places]

    def streams(self) -> dict[str, list[Op]]:
        """The ops of each stream in order of issue, streams in order of first use."""
        streams: dict[str, list[Op]] = {}
        for op in self.ops:
            streams.setdefault(op.stream, []).append(op)
        return streams

    def map_ops(self, change: Callable[[Op], Iterable[Op]], only: Container[str] | None = None) -> Program:
        """Replace every op by the ops that *change* returns for it. *only*: the names of ops that it changes.

        The last of these keeps the name of the replaced op, so that no `after` needs an update. *change* is called once
        for each op of a template. If it must tell micro-batches apart, call `materialise` first.
        """
        ops = self.templated

        def changed(op: Op) -> Iterable[Op]:
            return change(op) if only is None or op.name in only else (op,)

        mapped = [tuple(new for op in template for new in changed(op)) for template in ops.templates]
        return self.with_templated_ops(ops.mapped(mapped))

    def materialise(self, micro_batches: Collection[int | None] | None = None) -> Program:
        """The program with no placeholders in the blocks of these *micro_batches* (default: all)."""
        ops = self.templated
        which = ops.which.copy()
        meant = np.ones(len(which), np.bool_) if micro_batches is None else _among(ops.micro_batches, micro_batches)
        written = [ops.block(number).materialise().ops for number in np.flatnonzero(meant).tolist()]
        which[meant] = range(len(ops.templates), len(ops.templates) + len(written))
        return self.with_templated_ops(TemplatedOps.from_columns([*ops.templates, *written], which, ops.micro_batches))

    def by_micro_batch(self, change: Callable[[Program], Program]) -> Program:
        """Replace the blocks of each micro-batch, as one program, by what *change* returns for it.

        *change* gets templates, and is called once for all micro-batches with the same sequence of templates. It must
        keep the number of blocks, as `map_ops` and `with_ops` do. Blocks of no micro-batch form one program as well.
        """
        ops = self.templated
        known: dict[bytes, Numbers] = {}
        templates: list[tuple[Op, ...]] = []
        which = np.empty_like(ops.which)
        for numbers in ops.of_micro_batches():
            same = ops.which[numbers].tobytes()
            if same not in known:
                placeholders = np.full(len(numbers), PLACEHOLDER)
                own = TemplatedOps.from_columns(ops.templates, ops.which[numbers], placeholders)
                new = change(self.with_templated_ops(own)).templated
                known[same] = new.which + len(templates)
                templates += new.templates
            which[numbers] = known[same]
        return self.with_templated_ops(TemplatedOps.from_columns(templates, which, ops.micro_batches))

    def map_blocks(self, change: Callable[[Sequence[Op], Names], tuple[Iterable[Op], Names]]) -> Program:
        """Replace the ops of each block, in order of issue, by what *change* returns for them.

        *change* also gets the names of ops that it has returned for the block before, to wait for them. It is called
        once for all blocks of a template that follow equal names: the name of an op of another micro-batch is unknown
        to it, a text that stands for the name. An op that waits for such a name becomes a block of its own.
        """
        ops, made = self.templated, BlockList()
        known: dict[tuple[int, Names], tuple[list[tuple[Op, ...]], Names]] = {}
        carried: list[tuple[str, int]] = []
        for number, own in zip(ops.which.tolist(), ops.micro_batches.tolist(), strict=True):
            seen = tuple(
                name if micro_batch == own or PLACEHOLDER_TEXT not in name else f"{UNKNOWN}{place}"
                for place, (name, micro_batch) in enumerate(carried)
            )
            if (number, seen) not in known:
                new, names = change(ops.templates[number], seen)
                known[number, seen] = list(_split(new)), names
            pieces, names = known[number, seen]
            told = {text: _named(*one) for text, one in zip(seen, carried, strict=True) if text.startswith(UNKNOWN)}
            for piece in pieces:
                if told and piece[0].after and any(name in told for name in piece[0].after):
                    after = tuple(told.get(name, name) for name in piece[0].after)
                    made.add((changed(piece[0], after=after),), own)
                else:
                    made.add(piece, own)
            before = dict(zip(seen, carried, strict=True))
            carried = [before.get(name, (name, own)) for name in names]
        return self.with_templated_ops(made.ops())

    def with_ops(self, ops: Sequence[Op]) -> Program:
        """Replace the ops one for one by *ops*, and keep the blocks."""
        given = iter(ops)
        return self.with_templated_ops(
            TemplatedOps(OpBlock(tuple(next(given) for _ in block.ops), block.micro_batch) for block in self.blocks)
        )

    def with_templated_ops(self, ops: TemplatedOps) -> Program:
        """Replace the ops."""
        return replace(self, ops=ops)
