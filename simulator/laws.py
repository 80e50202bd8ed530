"""The laws of a schedule: what must hold before anything is simulated, each broken one shown where it stands."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from simulator.errors import ScheduleError
from simulator.mesh import Axis
from simulator.schedule import COLLECTIVES, Collective, Compute, Op, Program, Recv, Schedule, Send


def check(schedule: Schedule) -> None:
    """Raise `ScheduleError`, the printed program with the offending op marked, unless all laws hold.

    Names are unique and `after` looks backward only; communication names an axis, a peer, a root that there is;
    members of a group agree in kind, size, root and order of their collectives; every Send has its Recv of the same
    size; for each stage and micro-batch F precedes R precedes B, or I precedes W; what is allocated is freed.
    """
    for program in schedule.programs:
        _names(program)
        _phases(program)
        _memory(program)
    for name in schedule.mesh.axes:
        _members(schedule, name)
    for number, program in enumerate(schedule.programs):
        _axes(schedule, number, program)


def _broken(program: Program, index: int, law: str) -> ScheduleError:
    return ScheduleError(f"{program.role}, {program.ops[index].name}: {law}\n{program.printed(index)}")


def _names(program: Program) -> None:
    seen: set[str] = set()
    every = {op.name for op in program.ops}
    for index, op in enumerate(program.ops):
        if op.name in seen:
            raise _broken(program, index, "the name stands twice")
        for name in op.after:
            if name not in seen:
                why = "comes later" if name in every else "is not there"
                raise _broken(program, index, f"after {name}, which {why}; an op can only wait for earlier ones")
        seen.add(op.name)


_BEFORE = {"R": "F", "B": "F", "I": "F", "W": "I"}


def _phases(program: Program) -> None:
    """F precedes R and B of the same stage and micro-batch, R precedes B, I precedes W: judged by layer."""
    computes = [(index, op) for index, op in enumerate(program.ops) if isinstance(op, Compute) and op.action]
    first = {_place(op): index for index, op in reversed(computes)}
    for index, op in computes:
        action = op.action
        if action is None or action.phase not in _BEFORE:
            continue
        for before in [_BEFORE[action.phase]] + (["R"] if action.phase in "BI" else []):
            needed = (before, action.stage, action.micro_batch, op.layer)
            late = first.get(needed, -1 if before == "R" else len(program.ops))
            if late > index:
                raise _broken(program, index, f"{action.phase} stands before {before} of the same micro-batch")


def _place(op: Op) -> tuple[str, int, int | None, str | None] | None:
    return (op.action.phase, op.action.stage, op.action.micro_batch, op.layer) if op.action else None


def _memory(program: Program) -> None:
    balance: Counter[str] = Counter()
    for op in program.ops:
        balance.update(op.allocates)
        balance.subtract(op.frees)
    for category, nbytes in balance.items():
        given = sum(op.allocates.get(category, 0) for op in program.ops)
        if abs(nbytes) > 1e-9 * given:
            culprit = max(i for i, op in enumerate(program.ops) if category in op.allocates or category in op.frees)
            raise _broken(program, culprit, f"{nbytes:g} B of {category} are allocated and not freed")


def _axes(schedule: Schedule, number: int, program: Program) -> None:
    """Every axis that a program names is there, and the ranks that run the program stand on it."""
    ranks = schedule.ranks_of(number)
    stands: dict[str, tuple[int | None, int]] = {}
    for index, op in enumerate(program.ops):
        if isinstance(op, Collective) and op.kind not in COLLECTIVES:
            raise _broken(program, index, f"{op.kind} is no collective; there are {', '.join(COLLECTIVES)}")
        if not isinstance(op, Collective | Send | Recv):
            continue
        if op.over not in schedule.mesh.axes:
            raise _broken(program, index, f"no axis {op.over}; the mesh has {', '.join(schedule.mesh.axes)}")
        if op.over not in stands:
            stands[op.over] = _stand(schedule.mesh.axes[op.over], ranks)
        missing, size = stands[op.over]
        if missing is not None:
            raise _broken(program, index, f"rank {missing} runs it, but is not on the axis {op.over}")
        coordinate = op.root if isinstance(op, Collective) else op.peer
        if not 0 <= coordinate < size:
            raise _broken(program, index, f"coordinate {coordinate} is not on the axis {op.over} of {size}")


def _stand(axis: Axis, ranks: Sequence[int]) -> tuple[int | None, int]:
    """The first of *ranks* that is not on *axis*, and the size of the smallest group that one of them is in."""
    places = [(rank, axis.place(rank)) for rank in ranks]
    missing = next((rank for rank, place in places if place is None), None)
    return missing, min((len(axis.groups[place[0]]) for _, place in places if place), default=0)


def _members(schedule: Schedule, name: str) -> None:
    """Partners agree; groups whose members run the same programs in the same places are looked at once."""
    axis: Axis = schedule.mesh.axes[name]
    ops = [_communication(program, name) for program in schedule.programs]
    collectives = [_collectives(program, name) for program in schedule.programs]
    for members in dict.fromkeys(tuple(schedule.program_of[rank] for rank in group) for group in axis.groups):
        for member in dict.fromkeys(members[1:]):
            _agree(schedule, collectives, members[0], member)
        for sender, program in enumerate(members):
            for (receiver, key), (index, nbytes) in ops[program][0].items():
                if receiver >= len(members):
                    continue
                _index, taken = ops[members[receiver]][1].get((sender, key), (0, None))
                if taken != nbytes:
                    role = schedule.programs[members[receiver]].role
                    what = "has no such receive" if taken is None else f"receives {taken:g} B"
                    raise _broken(schedule.programs[program], index, f"{role}, its peer, {what}")
        for receiver, program in enumerate(members):
            for (sender, key), (index, _nbytes) in ops[program][1].items():
                if sender < len(members) and (receiver, key) not in ops[members[sender]][0]:
                    role = schedule.programs[members[sender]].role
                    raise _broken(schedule.programs[program], index, f"{role}, its peer, has no such send")


def _agree(schedule: Schedule, collectives: Sequence[_Collectives], one: int, other: int) -> None:
    """The *collectives* of two programs over an axis are the same, stream by stream, one after the other."""
    if one == other:
        return
    mine, theirs = schedule.programs[one], schedule.programs[other]
    first, second = collectives[one], collectives[other]
    for stream in {**first, **second}:
        a, b = first.get(stream, []), second.get(stream, [])
        for (i, x), (j, y) in zip(a, b, strict=False):
            if (x.kind, x.nbytes, x.root, x.algorithm) != (y.kind, y.nbytes, y.root, y.algorithm):
                raise _broken(theirs, j, f"does not agree with {mine.role}:\n{mine.printed(i)}\nof its group")
        if len(a) != len(b):
            program, (index, _op) = (mine, a[len(b)]) if len(a) > len(b) else (theirs, b[len(a)])
            partner = theirs if program is mine else mine
            raise _broken(program, index, f"{partner.role} of its group has no such collective on stream {stream}")


def _collectives(program: Program, axis: str) -> _Collectives:
    found: _Collectives = defaultdict(list)
    for index, op in enumerate(program.ops):
        if isinstance(op, Collective) and op.over == axis:
            found[op.stream].append((index, op))
    return found


_Collectives = dict[str, list[tuple[int, Collective]]]
"""By stream: (index, op)."""

_Messages = dict[tuple[int, object], tuple[int, float]]


def _communication(program: Program, axis: str) -> tuple[_Messages, _Messages]:
    """Sends and receives over *axis*: (peer, (action, how many of that before)) -> (index, bytes)."""
    sends, receives = dict(_messages(program, axis, Send)), dict(_messages(program, axis, Recv))
    return sends, receives


def _messages(
    program: Program, axis: str, kind: type[Send] | type[Recv]
) -> Iterator[tuple[tuple[int, object], tuple[int, float]]]:
    count: Counter[object] = Counter()
    for index, op in enumerate(program.ops):
        if isinstance(op, kind) and op.over == axis:
            key = op.action, count[op.peer, op.action]
            count[op.peer, op.action] += 1
            yield (op.peer, key), (index, op.nbytes)
