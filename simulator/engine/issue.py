"""A program as the engine issues it: per stream, runs of ops with all names resolved to numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.schedule import Collective, Compute, Copy, Op, Program, Recv, Send


@dataclass(frozen=True, slots=True)
class Run:
    """Ops of one stream that begin one after the other with nothing from outside between them.

    Their durations are known beforehand: computations *on* the ``gpu`` or ``host``, and collectives that share nothing
    with anyone, which a GPU's other users do not slow down: *steady*, by op. A communication with partners is a run of
    its own, *op*; *meeting* says how its partners find it: (what they all call it, how many of that came before).
    *waits* are the numbers of ops on other streams that must have ended; *watched*: an op of another stream waits for
    the run's last.
    """

    ops: tuple[int, ...]
    waits: tuple[int, ...]
    watched: bool
    op: Op
    on: str
    steady: tuple[bool, ...]
    meeting: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class Issue:
    """The *streams* of a program by name; *shares*: its computations meet others, or collectives' SMs, on the GPU."""

    streams: dict[str, tuple[Run, ...]]
    shares: bool


def issue(program: Program, collectives_take_sms: bool, private: Collection[str] = ()) -> Issue:
    """Resolve *program*.

    *collectives_take_sms*: its transport lets collectives slow computation. *private* axes are those whose collectives
    share nothing with anyone (`simulator.engine.folding`).
    """
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

    def steady(op: Op) -> bool:
        return isinstance(op, Collective) and op.over in private

    def timed(op: Op) -> bool:
        return (isinstance(op, Compute) and op.on == "gpu") or steady(op)

    def run(ops: Sequence[Op]) -> Run:
        waits = tuple(number[name] for name in ops[0].after if stream_of[name] != ops[0].stream)
        last = ops[-1]
        return Run(
            ops=tuple(number[op.name] for op in ops),
            waits=waits,
            watched=last.name in watched,
            op=last,
            on=last.on if isinstance(last, Compute) else "gpu",
            steady=tuple(map(steady, ops)),
            meeting=None if steady(last) else meetings.get(last.name),
        )

    def breaks(before: Op, op: Op) -> bool:
        own = all(stream_of[name] == op.stream for name in op.after)
        return not (own and timed(before) and timed(op)) or before.name in watched

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
