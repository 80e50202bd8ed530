"""A Gantt chart has a row for each rank and stream, and boxes in it, thinned to what an eye can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.analysis.intervals import averages
from simulator.analysis.palette import WAIT, Paint, paint_of
from simulator.errors import SimulatorError
from simulator.schedule import Compute, Op, Program
from simulator.timeline import Floats, Integers, Timeline

MOST_RANKS = 64
"""Shown unless ranks are chosen."""
MOST_ROWS = 96
"""Above it the transfers of a rank share one row."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of one *paint* in one row, *begin* to *end* (s); *apart* if each is one span, to be told from the next.

    *virtual*: which of the virtual stages of a pipeline rank they are of, counted from 0.
    """

    paint: Paint
    begin: Floats
    end: Floats
    apart: bool = True
    virtual: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """*text* that wants to stand in the middle of the run of boxes of *paint* from *begin* to *end* (s)."""

    text: str
    begin: float
    end: float
    paint: Paint


@dataclass(frozen=True)
class Row:
    """One *stream* of one *rank* (or its transfers together), as boxes."""

    rank: int
    stream: str
    computes: bool
    boxes: Sequence[Boxes]
    labels: Sequence[Label] = field(default=())


def chosen(timeline: Timeline, ranks: Sequence[int] | None, most: int = MOST_RANKS) -> list[int]:
    """The ranks to show: *ranks* as given, else all, else *most* of them evenly spread, first and last included.

    Raises `SimulatorError` for a rank that there is not.
    """
    world = timeline.world_size
    if ranks is None:
        if world <= most:
            return list(range(world))
        return sorted({round(place) for place in np.linspace(0, world - 1, most)})
    wrong = [rank for rank in ranks if not 0 <= rank < world]
    if wrong:
        raise SimulatorError(f"there is no rank {wrong[0]}; ranks are 0 to {world - 1}")
    if not ranks:
        raise SimulatorError(f"no ranks chosen; ranks are 0 to {world - 1}")
    return list(dict.fromkeys(ranks))


def shown_window(timeline: Timeline, window: tuple[float, float] | None) -> tuple[float, float]:
    """The window to show, in s: *window*, else all of the timeline. Raises `SimulatorError` if nothing lies in it."""
    whole = timeline.makespan
    if window is None:
        if not whole:
            raise SimulatorError("nothing to draw: the timeline takes no time")
        return 0.0, whole
    begin, end = window
    if not begin < end:
        raise SimulatorError(f"the window must end after it begins, not run from {begin:g} s to {end:g} s")
    if begin >= whole or end <= 0:
        raise SimulatorError(f"nothing lies in the window {begin:g} s to {end:g} s; the timeline ends at {whole:g} s")
    return begin, end


def rows(timeline: Timeline, ranks: Sequence[int], window: tuple[float, float], pixels: int = 1600) -> list[Row]:
    """The rows of *ranks* within *window* (s), for a chart *pixels* wide. Raises `SimulatorError` if there are none."""
    lanes = {number: _lanes(timeline.schedule.programs[number]) for number in set(timeline.schedule.program_of)}
    count = sum(len(set(lanes[timeline.schedule.program_of[rank]].values())) for rank in ranks)
    if count > MOST_ROWS:
        lanes = {number: {s: _folded(s, lane) for s, lane in of.items()} for number, of in lanes.items()}
    if not count:
        raise SimulatorError("nothing to draw: the ranks chosen have nothing to do")
    return [row for rank in ranks for row in _rows_of(timeline, rank, lanes, window, pixels)]


def _lanes(program: Program) -> dict[str, str]:
    """The row that each stream of *program* stands in, by its name; the streams that compute come first."""
    streams = dict.fromkeys(op.stream for op in program.distinct())
    computing = list(dict.fromkeys(op.stream for op in program.distinct() if isinstance(op, Compute)))
    return {name: name for name in [*computing, *(name for name in streams if name not in computing)]}


def _folded(stream: str, lane: str) -> str:
    return lane if stream == "compute" else "transfers"


def _rows_of(
    timeline: Timeline, rank: int, lanes: dict[int, dict[str, str]], window: tuple[float, float], pixels: int
) -> list[Row]:
    program = timeline.schedule.program(rank)
    lane_of = lanes[timeline.schedule.program_of[rank]]
    names = list(dict.fromkeys(lane_of.values()))
    place = np.array([names.index(lane_of[op.stream]) for op in program.ops], np.int64)
    op, _, ready, begin, end, _ = timeline.of(rank)
    visible = (end >= window[0]) & (ready <= window[1])
    result = []
    for number, name in enumerate(names):
        mine = visible & (place[op] == number) if len(op) else visible
        spans = _Spans(program.ops, op[mine], ready[mine], begin[mine], end[mine])
        computes = any(isinstance(one, Compute) for one in program.ops if lane_of[one.stream] == name)
        result.append(Row(rank, name, computes, _boxes(spans, window, pixels), _labels(spans, window, pixels)))
    return result


@dataclass(frozen=True, slots=True)
class _Spans:
    ops: Sequence[Op]
    op: Integers
    ready: Floats
    begin: Floats
    end: Floats


def _boxes(spans: _Spans, window: tuple[float, float], pixels: int) -> list[Boxes]:
    paints = list(dict.fromkeys(paint_of(op) for op in spans.ops))
    kind_of = np.array([paints.index(paint_of(op)) for op in spans.ops], np.int64)
    kind = kind_of[spans.op] if len(spans.op) else spans.op
    waits = spans.begin > spans.ready
    kinds = np.concatenate((np.full(int(waits.sum()), len(paints)), kind))
    begin = np.concatenate((spans.ready[waits], spans.begin))
    end = np.concatenate((spans.begin[waits], spans.end))
    lasting = end > begin
    begin, end, kinds = begin[lasting], end[lasting], kinds[lasting]
    dense = len(kinds) > pixels // 2
    if dense:
        begin, end, kinds = rastered(begin, end, kinds, len(paints) + 1, window, pixels // 2)
    begin, end = np.clip(begin, *window), np.clip(end, *window)
    # waits first, so that work is drawn over them
    order = [len(paints), *range(len(paints))]
    groups = ((([*paints, WAIT])[k], kinds == k) for k in order)
    return [Boxes(paint, begin[mine], end[mine], not dense) for paint, mine in groups if mine.any()]


def rastered(
    begin: Floats, end: Floats, kind: Integers, kinds: int, window: tuple[float, float], cells: int
) -> tuple[Floats, Floats, Integers]:
    """More boxes than can be told apart, as at most one for each of *cells* columns; runs of one kind are one box.

    Each kind, emptiness too, gets as many columns as its share of the time, near where it ran: what a column could not
    show is carried on to the next ones. So no kind is lost, however short its boxes.
    """
    edges = np.linspace(*window, cells + 1)
    share = averages(begin, end, np.ones(len(begin)), kind, kinds, edges)
    filled = share.sum(axis=0)
    # where boxes overlap they share the column
    share = np.vstack((share / np.maximum(filled, 1.0), np.maximum(1.0 - filled, 0.0)))
    top, owed = np.zeros(cells, np.int64), np.zeros(kinds + 1)
    for cell in range(cells):
        owed += share[:, cell]
        top[cell] = owed.argmax()
        owed[top[cell]] -= 1.0
    starts = np.flatnonzero(np.diff(top, prepend=-1))
    stops = np.append(starts[1:], cells)
    kept = top[starts] < kinds
    return edges[starts[kept]], edges[stops[kept]], top[starts[kept]]


def _labels(spans: _Spans, window: tuple[float, float], pixels: int) -> list[Label]:
    """Names of actions and collectives, for runs wide enough to hold two letters."""
    least = (window[1] - window[0]) / pixels * 14
    names = [(_text(op), paint_of(op), isinstance(op, Compute)) for op in spans.ops]
    runs = [Label("", window[0], window[0], WAIT)]
    for place in np.argsort(spans.begin, kind="stable").tolist():
        text, paint, computes = names[spans.op[place]]
        begin, end = max(window[0], float(spans.begin[place])), min(window[1], float(spans.end[place]))
        last = runs[-1]
        if computes and last.text == text and begin - last.end < least / 14:
            runs[-1] = Label(text, last.begin, end, paint)
        else:
            runs.append(Label(text, begin, end, paint))
    return [run for run in runs if run.end - run.begin >= least]


def _text(op: Op) -> str:
    if isinstance(op, Compute):
        if op.action is None:
            return op.name
        number = op.action.micro_batch
        return f"{op.action.phase}{'' if number is None else number}"
    return op.name
