"""A program as the engine issues it: per stream, runs of ops with all names resolved to numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.schedule import Collective, Compute, Copy, Op, Program, Recv, Send


@dataclass(frozen=True, slots=True)
class Run:
    """Ops of one stream that begin one after the other with nothing from outside between them.

    A run of several is all computation, on a GPU that nothing else touches; *waits* are the numbers of ops on
    other streams that must have ended. *watched*: an op of another stream waits for its last. *meeting*: for a
    communication, how its partners find it: (what they all call it, how many of that came before).
    """

    ops: tuple[int, ...]
    waits: tuple[int, ...]
    watched: bool
    op: Op
    meeting: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class Issue:
    """The *streams* of a program by name; *shares*: its computations meet others, or collectives' SMs, on the GPU."""

    streams: dict[str, tuple[Run, ...]]
    shares: bool


def issue(program: Program, collectives_take_sms: bool) -> Issue:
    """Resolve *program*; *collectives_take_sms* says whether its transport lets collectives slow computation."""
    streams = program.streams()
    number = {op.name: index for index, op in enumerate(program.ops)}
    stream_of = {op.name: op.stream for op in program.ops}
    watched = {name for op in program.ops for name in op.after if stream_of[name] != op.stream}
    computing = [name for name, ops in streams.items() if any(isinstance(op, Compute) and op.on == "gpu" for op in ops)]
    beside = [name for name, ops in streams.items() if name not in computing or len(computing) > 1]
    shares = len(computing) > 1 or (
        collectives_take_sms and any(isinstance(op, Collective) for name in beside for op in streams[name])
    )
    meetings = _meetings(program)

    def run(ops: Sequence[Op]) -> Run:
        waits = tuple(number[name] for name in ops[0].after if stream_of[name] != ops[0].stream)
        last = ops[-1]
        return Run(tuple(number[op.name] for op in ops), waits, last.name in watched, last, meetings.get(last.name))

    def breaks(before: Op, op: Op) -> bool:
        own = all(stream_of[name] == op.stream for name in op.after)
        private = not shares and all(isinstance(one, Compute) and one.on == "gpu" for one in (before, op))
        return not (private and own) or before.name in watched

    return Issue({name: tuple(run(part) for part in _parts(ops, breaks)) for name, ops in streams.items()}, shares)


def _parts(ops: Sequence[Op], breaks: Callable[[Op, Op], bool]) -> Iterator[list[Op]]:
    part = [ops[0]]
    for before, op in pairwise(ops):
        if breaks(before, op):
            yield part
            part = []
        part.append(op)
    yield part


def _meetings(program: Program) -> dict[str, tuple[object, ...]]:
    """By name of each communication: what its partners also call it, and how many of that came before.

    Of a collective its stream, of a message its action, of a copy its name.
    """
    counts: dict[tuple[object, ...], int] = {}
    found: dict[str, tuple[object, ...]] = {}
    where: tuple[object, ...]
    common: object
    for op in program.ops:
        if isinstance(op, Collective):
            where, common = (op.over,), op.stream
        elif isinstance(op, Send | Recv):
            where, common = (op.over, op.peer, isinstance(op, Send)), op.action
        elif isinstance(op, Copy):
            where, common = (), op.name
        else:
            continue
        before = counts.get((where, common), 0)
        counts[where, common] = before + 1
        found[op.name] = (common, before)
    return found
