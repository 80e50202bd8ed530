"""The programme of recomputation and offloading as compiled loops over arrays; `Programme` says what it finds.

Layers count from 1 to L. A block is (kind, first, last): `SAVED`, one layer that saves its tape, or `AGAIN`, layers
that are run again from their input. Memory is in slots. *room*: what the layers from here on may take beside their
input; a block that stays takes *taken* slots of it. What a copy takes beside that is its *load*.

While a block's copy is under way, the blocks of its *window* run. ``inside[last, room, taken]`` has the least seconds
of the backward pass of blocks that fill a window from its first layer up to *last* and take *taken* slots in all.
``rest[first, room]`` has the least seconds of the backward passes and the waits of all layers from *first* on, and
``away[first, load number, room]`` the same if a copy of that load begins with layer *first*.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from numba import njit

from clustersim.simulator.engine.compiled.compilation import compiled
from clustersim.workloads.memory.offload_and_recompute_tables import AGAIN, SAVED, Floats, Integers

COMPILE_SECONDS = 10
"""About how long `solve` and `inside` take to compile, s, on one core of an Intel Xeon of 2021."""


@njit
def _block(t: Any, kind: int, first: int, last: int, room: int) -> float:
    """Seconds of the backward pass of a block in *room* slots."""
    if kind == AGAIN:
        return float(t.again[first, last, room])
    return float(t.backward[first]) if room >= t.peak[first] else inf


@njit
def _taken(t: Any, kind: int, first: int, last: int) -> int:
    if kind == SAVED:
        return int(t.rest[first] + t.activation[first])
    return int(t.activation[last]) if last < len(t.until) - 1 else 0


@njit
def _others(t: Any, first: int, last: int) -> float:
    """The seconds that the backward passes of all layers but *first* ... *last* take at least."""
    return float(t.backward[:first].sum() + t.backward[last + 1 :].sum())


@compiled()
def inside(t: Any, begin: int, most: int) -> tuple[Floats, Integers]:
    """The seconds and choices, 2 first + kind of the last block, of windows from *begin* up to layers below *most*."""
    slots = t.again.shape[2] - 1
    seconds = np.full((most - begin + 1, slots + 1, slots + 1), inf)
    choices = np.full(seconds.shape, -1, np.int64)
    seconds[0, :, 0] = 0.0
    for first in range(begin, most):
        for last in range(first, most):
            for kind in range(AGAIN if last > first else SAVED, AGAIN + 1):
                taken = _taken(t, kind, first, last)
                most_seconds = t.limit - _others(t, begin, last)
                for room in range(slots + 1):
                    for before in range(room - taken + 1):
                        known = seconds[first - begin, room, before]
                        if known == inf:
                            continue
                        total = known + _block(t, kind, first, last, room - before)
                        if total <= most_seconds and total < seconds[last - begin + 1, room, before + taken]:
                            seconds[last - begin + 1, room, before + taken] = total
                            choices[last - begin + 1, room, before + taken] = 2 * first + kind
    return seconds, choices


@njit
def _hidden_from(t: Any, begin: int, number: int) -> int:
    """The last layer of the shortest window from *begin* that surely hides the copy, at most the last but one of all.

    The window of a plan never needs another block behind it.
    """
    layers = len(t.until) - 1
    backward = 0.0
    for last in range(begin, layers):
        backward += t.backward[last]
        if min(backward, t.until[last] - t.until[begin - 1]) >= t.seconds[begin, number]:
            return last
    return layers - 1


@njit
def _load_of(t: Any, kind: int, first: int, last: int) -> int:
    return int(t.saved_load[first] if kind == SAVED else t.again_load[first, last])


@njit
def _close_windows(t: Any, begin: int, rest: Floats, away: Floats, choices: Integers) -> None:
    """Fill ``away[begin]`` and its choices.

    A choice is the first and the last layer of the last block, its kind (2 more if it is copied), and the slots taken
    before it.
    """
    layers, count = len(t.until) - 1, 0
    while count < t.loads.shape[1] and t.loads[begin, count] >= 0:
        count += 1
    if not count or begin >= layers:
        return
    ends = [_hidden_from(t, begin, number) for number in range(count)]
    most = max(ends)
    within, _ = inside(t, begin, most)
    for first in range(begin, most + 1):
        for last in range(first, layers):
            for kind in range(AGAIN if last > first else SAVED, AGAIN + 1):
                open_for = [number for number in range(count) if first <= ends[number]]
                _close(t, begin, open_for, (kind, first, last), within[first - begin], rest, away, choices)


@njit
def _close(
    t: Any,
    begin: int,
    copies: list[int],
    block: tuple[int, int, int],
    within: Floats,
    rest: Floats,
    away: Floats,
    choices: Integers,
) -> None:
    """Let *block* be the last one in the windows from *begin* for *copies* (numbers); *within*: seconds before it."""
    kind, first, last = block
    forward, others = t.until[last] - t.until[begin - 1], _others(t, begin, last)
    taken, own = _taken(t, kind, first, last), _load_of(t, kind, first, last)
    gained, slots = t.activation[first - 1] - t.activation[last], len(rest[0]) - 1
    for room in range(slots + 1):
        for before in range(room - taken + 1):
            total = within[room, before]
            if total < inf:
                total += _block(t, kind, first, last, room - before)
            if total == inf or total + others > t.limit:
                continue
            for number in copies:
                whole, copy = room + t.loads[begin, number], t.seconds[begin, number]
                if whole > slots:
                    continue
                spent = max(total, copy) + max(0.0, copy - forward)
                if spent + rest[last + 1, whole - before - taken] < away[begin, number, whole]:
                    away[begin, number, whole] = spent + rest[last + 1, whole - before - taken]
                    choices[begin, number, whole] = (first, last, kind, before)
                left = whole - before + gained
                if own >= 0 and 0 <= left <= slots and spent + away[last + 1, own, left] < away[begin, number, whole]:
                    away[begin, number, whole] = spent + away[last + 1, own, left]
                    choices[begin, number, whole] = (first, last, 2 + kind, before)


@compiled("the programme of recomputation and offloading", COMPILE_SECONDS)
def solve(t: Any, least_left: int) -> tuple[Floats, Integers, Floats, Integers]:
    """``rest``, its choices (last layer, kind + 2 if copied), ``away`` and its choices.

    At the turn at least *least_left* slots of the room must be left.
    """
    layers, slots = len(t.until) - 1, t.again.shape[2] - 1
    rest = np.full((layers + 2, slots + 1), inf)
    rest[layers + 1, least_left:] = 0.0
    rest_choices = np.full((layers + 2, slots + 1, 2), -1, np.int64)
    away = np.full((layers + 2, t.loads.shape[1], slots + 1), inf)
    away_choices = np.full((layers + 2, t.loads.shape[1], slots + 1, 4), -1, np.int64)
    for first in range(layers, 0, -1):
        _close_windows(t, first, rest, away, away_choices)
        for last in range(first, layers + 1):
            for kind in range(AGAIN if last > first else SAVED, AGAIN + 1):
                taken, own = _taken(t, kind, first, last), _load_of(t, kind, first, last)
                gained = t.activation[first - 1] - t.activation[last]
                for room in range(taken, slots + 1):
                    total = _block(t, kind, first, last, room)
                    if total + rest[last + 1, room - taken] < rest[first, room]:
                        rest[first, room] = total + rest[last + 1, room - taken]
                        rest_choices[first, room] = (last, kind)
                    left = room + gained
                    if own >= 0 and 0 <= left <= slots and total + away[last + 1, own, left] < rest[first, room]:
                        rest[first, room] = total + away[last + 1, own, left]
                        rest_choices[first, room] = (last, 2 + kind)
    return rest, rest_choices, away, away_choices
