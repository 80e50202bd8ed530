"""Partners agree: members of a group in their collectives, one after the other, and every send with its receive.

Messages are compared as columns, all those of a group at once; only where they differ is it told which, and how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from simulator.ops import Collective, Recv, Send
from simulator.order import PHASES, PLACEHOLDER, Action
from simulator.program import Program
from simulator.schedule import Schedule

_Rows = npt.NDArray[np.float64]

_Key = tuple[int, Action | None, int]
"""(peer, action, how many of that before)."""


def agree(schedule: Schedule, name: str) -> None:
    """Raise `ScheduleError` unless the partners on the axis of that *name* agree.

    Groups whose members run the same programs in the same places are looked at once.
    """
    sends, receives = ([_rows(program, name, kind) for program in schedule.programs] for kind in (Send, Recv))
    for members in dict.fromkeys(
        tuple(schedule.program_of[rank] for rank in group) for group in schedule.mesh.axes[name].groups
    ):
        for member in dict.fromkeys(members[1:]):
            if member != members[0]:
                _alike(schedule.programs[members[0]], schedule.programs[member], name)
        sent = _between([sends[program] for program in members])
        taken = _between([receives[program] for program in members])[:, [1, 0, 2, 3, 4, 5, 6]]
        if not np.array_equal(_in_order(sent), _in_order(taken)):
            _blame_a_message([schedule.programs[program] for program in members], name)


def _alike(mine: Program, theirs: Program, axis: str) -> None:
    """Raise unless two programs have the same collectives over *axis*, stream by stream, one after the other."""
    first, second = (_collectives(program, axis) for program in (mine, theirs))
    for stream in {**first, **second}:
        a, b = first.get(stream, []), second.get(stream, [])
        for (i, x), (j, y) in zip(a, b, strict=False):
            if (x.kind, x.nbytes, x.root, x.algorithm) != (y.kind, y.nbytes, y.root, y.algorithm):
                raise theirs.broken(j, f"does not agree with {mine.role}:\n{mine.printed(i)}\nof its group")
        if len(a) != len(b):
            program, (index, _op) = (mine, a[len(b)]) if len(a) > len(b) else (theirs, b[len(a)])
            partner = theirs if program is mine else mine
            raise program.broken(index, f"{partner.role} of its group has no such collective on stream {stream}")


def _collectives(program: Program, axis: str) -> dict[str, list[tuple[int, Collective]]]:
    """Those over *axis* by stream, in order of issue: (index, op)."""
    ops = program.templated
    of = [[(n, op) for n, op in enumerate(t) if isinstance(op, Collective) and op.over == axis] for t in ops.templates]
    found: dict[str, list[tuple[int, Collective]]] = {}
    for number in np.flatnonzero(np.array(list(map(bool, of)))[ops.which]).tolist():
        for place, op in of[ops.which[number]]:
            found.setdefault(op.stream, []).append((int(ops.starts[number]) + place, op))
    return found


def _rows(program: Program, axis: str, kind: type[Send] | type[Recv]) -> _Rows:
    """A row for each message of *kind* over *axis*: peer, phase, stage, micro-batch, bytes, number of the op."""
    ops = program.templated
    rows = [np.empty((0, 6))]
    for number, template in enumerate(ops.templates):
        for place, op in enumerate(template):
            if isinstance(op, kind) and op.over == axis:
                phase, stage, micro_batch = op.action or ("", -1, None)
                blocks = np.flatnonzero(ops.which == number)
                row = np.empty((len(blocks), 6))
                row[:, :3] = op.peer, list(PHASES).index(phase) if phase else -1, stage
                row[:, 3] = ops.micro_batches[blocks] if micro_batch in (None, PLACEHOLDER) else micro_batch
                row[:, 4], row[:, 5] = op.nbytes, ops.starts[blocks] + place
                rows.append(row)
    return np.concatenate(rows)


def _between(rows: Sequence[_Rows]) -> _Rows:
    """The rows of each member, its coordinate before them, as far as the peer is one of their group."""
    found = np.concatenate([np.insert(row, 0, member, axis=1) for member, row in enumerate(rows)])
    return found[found[:, 1] < len(rows)]


def _in_order(rows: _Rows) -> _Rows:
    """Sorted by all but bytes, and among equals by the number of the op, which is then left out."""
    return rows[np.lexsort(rows[:, [6, 4, 3, 2, 1, 0]].T)][:, :6]


def _blame_a_message(members: Sequence[Program], axis: str) -> NoReturn:
    """Raise what is wrong with the messages among *members*."""
    sends, receives = ([dict(_messages(program, axis, kind)) for program in members] for kind in (Send, Recv))
    for sender, program in enumerate(members):
        for (receiver, action, before), (index, nbytes) in sends[sender].items():
            if receiver < len(members):
                met = receives[receiver].get((sender, action, before))
                if met is None or met[1] != nbytes:
                    what = f"receives {met[1]:g} B" if met else "has no such receive"
                    raise program.broken(index, f"{members[receiver].role}, its peer, {what}")
    for receiver, program in enumerate(members):
        for (sender, action, before), (index, _nbytes) in receives[receiver].items():
            if sender < len(members) and (receiver, action, before) not in sends[sender]:
                raise program.broken(index, f"{members[sender].role}, its peer, has no such send")
    raise AssertionError(axis)


def _messages(program: Program, axis: str, kind: type[Send] | type[Recv]) -> Iterator[tuple[_Key, tuple[int, float]]]:
    """Each of *kind* over *axis*: its key -> (index, bytes)."""
    count: Counter[object] = Counter()
    for index, op in enumerate(program.ops):
        if isinstance(op, kind) and op.over == axis:
            yield (op.peer, op.action, count[op.peer, op.action]), (index, op.nbytes)
            count[op.peer, op.action] += 1
