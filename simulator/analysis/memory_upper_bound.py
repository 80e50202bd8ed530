"""An upper bound of the memory of a program by program order, without simulation.

Most blocks of a program use a template that has been seen before. So the changes of a template are summed once, and a
block adds its sum. Only where a block frees what an earlier one has allocated on another stream, its ops are followed
one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import CATEGORIES, Op
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps

HOST = "host."
"""The prefix of categories in the memory of the host."""


class MostHeld(NamedTuple):
    """The most bytes that a program holds: *nbytes*, first at the op *place*, *by_category*."""

    nbytes: float
    place: float
    by_category: Mapping[str, float]


Pending = dict[str, tuple[str, Mapping[str, float]]]
"""By stream other than the compute stream: the name of its last op, and what that frees later."""


@dataclass
class _Account:
    """Bytes by category while ops are followed; *held* now, *peak* the first highest sum, at *place*."""

    names: Sequence[str]
    held: list[float]
    peak: float = 0.0
    place: float = 0.0
    at_peak: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peak, self.at_peak = sum(self.held), list(self.held)

    def change(self, place: float, amounts: Mapping[str, float], sign: int) -> None:
        """Add *sign* times *amounts* at *place*."""
        for number, name in enumerate(self.names):
            if name in amounts:
                self.held[number] += sign * amounts[name]
        total = sum(self.held)
        if total > self.peak:
            self.peak, self.place, self.at_peak = total, place, list(self.held)

    def add(self, place: float, other: _Account) -> None:
        """Add what the account *other*, which began with nothing, has followed; it begins at *place*."""
        top = [a + b for a, b in zip(self.held, other.at_peak, strict=True)]
        total = sum(top)
        if total > self.peak:
            self.peak, self.place, self.at_peak = total, place + other.place, top
        self.held = [a + b for a, b in zip(self.held, other.held, strict=True)]


def held_at_most(program: Program, host: bool) -> MostHeld:
    """Return the most that *program* holds on its GPU, or with *host* in the memory of its host.

    Ops are assumed to allocate in program order. Bytes that are freed by an op outside the compute stream count until
    the next op of its stream, or a computation that waits for it.
    """
    used = set(program.resident).union(*(one for op in program.distinct() for one in (op.allocates, op.frees) if one))
    names = [name for name in _categories(used) if (program.on == "host" or name.startswith(HOST)) == host]
    if not names:
        return MostHeld(0.0, 0.0, {})
    account = _Account(names, [program.resident.get(name, 0.0) for name in names])
    ops = program.templated
    templates = [_Template(own, names) for own in ops.templates]
    if templates and all(template.plain for template in templates):
        return _of_plain(ops, templates, account)
    pending: Pending = {}
    for number, which in enumerate(ops.which.tolist()):
        template, place = templates[which], int(ops.starts[number])
        if template.plain and not (pending and template.frees(pending, ops.block(number))):
            account.add(place, template.account)
        else:
            _follow(ops.block(number), place, pending, account)
    for _, frees in pending.values():
        account.change(float(len(ops)), frees, -1)
    return MostHeld(account.peak, account.place, dict(zip(names, account.at_peak, strict=True)))


def _of_plain(ops: TemplatedOps, templates: Sequence[_Template], account: _Account) -> MostHeld:
    """Return the most that *ops* hold, whose *templates* are all plain; *account* has what is resident."""
    own = [template.account for template in templates]
    changes = np.array([one.held for one in own])[ops.which]
    # what is held before each block, summed in the order of the blocks
    before = np.cumsum(np.vstack([account.held, changes]), axis=0)[:-1]
    at_peak = before + np.array([one.at_peak for one in own])[ops.which]
    total = np.zeros(len(before))
    for column in at_peak.T:
        total += column
    top = int(total.argmax())
    if total[top] <= account.peak:
        return MostHeld(account.peak, 0.0, dict(zip(account.names, account.at_peak, strict=True)))
    place = float(ops.starts[top]) + own[ops.which[top]].place
    return MostHeld(float(total[top]), place, dict(zip(account.names, at_peak[top].tolist(), strict=True)))


def uses_host(program: Program) -> bool:
    """Return whether *program*, of a GPU, holds anything in the memory of its host."""
    held = {name for op in program.distinct() for name in op.allocates} | set(program.resident)
    return any(name.startswith(HOST) for name in held)


def _categories(used: set[str]) -> list[str]:
    known = [*CATEGORIES, *(HOST + name for name in CATEGORIES)]
    return [name for name in known if name in used] + sorted(used - set(known))


class _Template:
    """A template: if it is *plain*, its *account* holds for each of its blocks.

    It is plain if no op outside the compute stream frees anything.
    """

    def __init__(self, ops: Sequence[Op], names: Sequence[str]) -> None:
        self.ops, self._names = ops, names
        self.plain = not any(op.frees and op.stream != "compute" for op in ops)
        self.streams = {op.stream for op in ops}
        self.awaited = list(dict.fromkeys(name for op in ops if op.stream == "compute" for name in op.after))

    @cached_property
    def account(self) -> _Account:
        """What a block of it changes, if nothing is pending."""
        account = _Account(self._names, [0.0] * len(self._names))
        _follow(OpBlock(tuple(self.ops)), 0, {}, account)
        return account

    def frees(self, pending: Pending, block: OpBlock) -> bool:
        """Return whether an op of *block*, a block of this template, ends what is *pending*."""
        if not self.streams.isdisjoint(pending):
            return True
        return not {name for name, _ in pending.values()}.isdisjoint(block.names(self.awaited))


def _follow(block: OpBlock, begin: int, pending: Pending, account: _Account) -> None:
    """Follow the ops of *block*, the first at place *begin*."""
    # a program may have thousands of streams, so what an op ends is looked up and not searched for
    stream_of = {name: stream for stream, (name, _) in pending.items()}
    for place, op in enumerate(block.ops, begin):
        if pending:
            waits = block.names(op.after) if op.stream == "compute" else ()
            ended = dict.fromkeys([op.stream, *(stream_of[name] for name in waits if name in stream_of)])
            for stream in [stream for stream in ended if stream in pending]:
                name, frees = pending.pop(stream)
                del stream_of[name]
                account.change(place, frees, -1)
        if op.allocates:
            account.change(place, op.allocates, 1)
        if not op.frees:
            continue
        if op.stream == "compute":
            account.change(place + 0.5, op.frees, -1)
        else:
            name = block.name(op.name)
            pending[op.stream], stream_of[name] = (name, op.frees), op.stream
