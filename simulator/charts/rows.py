"""The rows of a Gantt chart, one for each stream of each rank or class of equal ranks, with boxes and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.timeline import (
    NO_MICRO_BATCH,
    Columns,
    Floats,
    Integers,
    Timeline,
    micro_batches,
    op_names,
)
from clustersim.simulator.charts.palette import WAIT, Paint, paint_of
from clustersim.simulator.charts.rank_groups import MOST_COMPARED, RankGroup, group_name
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.pipeline_order import PHASES
from clustersim.simulator.schedule.program import Program

MOST_CLASSES = 32
"""Classes of equal ranks that a chart shows at most, unless ranks are given."""
MOST_GIVEN = 64
"""Ranks that a chart shows one by one if they are given; of more, equal ones are a band, and so many bands are shown.
"""
MOST_ROWS = 64
"""Number of rows above which all transfers of a rank are in one row: names of more streams have no room."""
LEAST_LABEL = 14
"""Width in pixels of two characters, the shortest label."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Spans of one *paint* in one row, *begin* to *end* (s), in any order.

    *virtual*: the number of their virtual stage on the pipeline rank, from 0.
    """

    paint: Paint
    begin: Floats
    end: Floats
    virtual: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """*text* in the middle of a sequence of boxes of *paint* from *begin* to *end* (s)."""

    text: str
    begin: float
    end: float
    paint: Paint


@dataclass(frozen=True)
class ChartRow:
    """One *stream* of *rank* (or all its transfers) as boxes; *name*: that of the rank or of its class."""

    rank: int
    stream: str
    computes: bool
    boxes: Sequence[Boxes]
    labels: Sequence[Label] = field(default=())
    name: str = ""


class Shown(NamedTuple):
    """A rank that a chart shows, and the *name* of its row: that of the rank, or of its class."""

    rank: int
    name: str


def chosen(timeline: Timeline, ranks: Sequence[int] | None, most: int) -> list[int]:
    """Return the ranks to show: *ranks* if given, else all, or *most* of them, evenly spaced with first and last.

    Raises `SimulatorError` for an unknown rank.
    """
    world = timeline.world_size
    if ranks is None:
        return evenly(range(world), most)
    wrong = [rank for rank in ranks if not 0 <= rank < world]
    if wrong:
        raise SimulatorError(f"there is no rank {wrong[0]}; ranks are 0 to {world - 1}")
    if not ranks:
        raise SimulatorError(f"no ranks chosen; ranks are 0 to {world - 1}")
    return list(dict.fromkeys(ranks))


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return *items*, or *most* of them, evenly spaced with first and last.

    >>> evenly(range(9), 5)
    [0, 2, 4, 6, 8]
    """
    if len(items) <= most:
        return list(items)
    return [items[place] for place in sorted({round(p) for p in np.linspace(0, len(items) - 1, most)})]


def shown(
    timeline: Timeline,
    ranks: Sequence[int] | None,
    most: int = MOST_CLASSES,
    join: Join | None = None,
) -> tuple[list[Shown], str]:
    """Return the ranks to show (*ranks*, else one of each class), and a note of what is left out.

    More than `MOST_GIVEN` given *ranks* are shown as bands of equal ones.

    *join* joins classes that look equal. Of more than *most* rows an evenly spaced selection is shown. Ranks without
    kept spans are left out. Raises `SimulatorError` for an unknown rank.
    """
    world = timeline.world_size
    if ranks is not None:
        given = chosen(timeline, ranks, world)
        if len(given) > MOST_GIVEN:
            return _bands(timeline, given, join)
        note = "" if len(given) == world else f"{len(given)} of {world:,} ranks"
        return [Shown(rank, f"rank {rank}") for rank in given], note
    classes = dict(timeline.classes)
    several = _joined(classes, join)
    known = sum(map(len, classes.values()))
    kept = evenly(range(len(several)), most)
    named = [Shown(several[place].first, group_name(timeline, several[place].ranks)) for place in kept]
    if known < world:
        some = f"{len(kept)} of " if len(kept) < len(several) else ""
        return named, f"{some}{known:,} of {world:,} ranks, those whose spans were kept; --ranks keeps others"
    return named, _told(world, len(classes), len(several), len(kept))


Join = Callable[[Mapping[int, Integers]], list[RankGroup]]


def _joined(classes: Mapping[int, Integers], join: Join | None) -> list[RankGroup]:
    """Return *classes* as groups, joined by *join* if they are not too many to compare."""
    if join is not None and len(classes) <= MOST_COMPARED:
        return join(classes)
    return [RankGroup(first, alike) for first, alike in classes.items()]


def _bands(timeline: Timeline, given: Sequence[int], join: Join | None) -> tuple[list[Shown], str]:
    """Return a row for each band of equal ranks among the many *given* ones, and a note."""
    classes: dict[int, Integers] = {}
    for alike in timeline.classes.values():
        mine = alike[np.isin(alike, given)]
        if len(mine):
            classes[int(mine[0])] = mine
    several = _joined(classes, join)
    kept = evenly(range(len(several)), MOST_GIVEN)
    named = [Shown(several[place].first, group_name(timeline, several[place].ranks)) for place in kept]
    some = f"{len(kept)} of " if len(kept) < len(several) else ""
    known = sum(map(len, classes.values()))
    of = f"{known:,} of {timeline.world_size:,} ranks" if known < timeline.world_size else f"{known:,} ranks"
    return named, f"{of} in {some}{len(several):,} {'band' if len(several) == 1 else 'bands'} of ranks that look equal"


def _told(world: int, classes: int, rows: int, kept: int) -> str:
    """Return the note of a chart with *kept* of *rows* rows of *world* ranks in so many *classes* of equal ranks."""
    if kept < rows:
        what = "ranks" if rows == world else f"classes of equal ranks ({world:,} ranks)"
        return f"{kept} of {rows:,} {what}, evenly spread; --ranks shows others"
    if rows == world:
        return ""
    if rows == 1:
        return f"{world:,} ranks: one row for all ranks, which are equal"
    if rows < classes:
        return f"{world:,} ranks in {rows} rows; the ranks of a row look the same at this scale"
    return f"{world:,} ranks: {rows} classes of equal ranks"


def shown_window(timeline: Timeline, window: tuple[float, float] | None) -> tuple[float, float]:
    """Return the window to show, s: *window*, else the whole timeline. Raises `SimulatorError` if it is empty."""
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


def rows(timeline: Timeline, ranks: Sequence[Shown], window: tuple[float, float], pixels: int = 1200) -> list[ChartRow]:
    """Return the rows of *ranks* within *window* (s), with the labels that fit into a chart *pixels* wide.

    Raises `SimulatorError` if there are none.
    """
    looks = looks_of(timeline, [rank for rank, _ in ranks])
    pixel = (window[1] - window[0]) / pixels
    result = []
    for rank, name in ranks:
        look = looks[timeline.schedule.program_of[rank]]
        own = _visible(timeline.of(rank), window)
        for number, lane in enumerate(look.lanes):
            spans = _among(own, look.lane[own.op] == number)
            labels = _labels(spans, look, window, pixel)
            result.append(ChartRow(rank, lane, look.computing[number], _boxes(spans, look, window), labels, name))
    return result


def looks_of(timeline: Timeline, ranks: Sequence[int]) -> dict[int, Looks]:
    """Return the appearance of the ops of the programs of *ranks*, by number of program.

    Above `MOST_ROWS` rows all transfers of a rank share one. Raises `SimulatorError` if there are no ops.
    """
    programs, program_of = timeline.schedule.programs, timeline.schedule.program_of
    lanes = {number: _lanes(programs[number]) for number in {program_of[rank] for rank in ranks}}
    count = sum(len(set(lanes[program_of[rank]].values())) for rank in ranks)
    if count > MOST_ROWS:
        lanes = {number: {s: _folded(s, lane) for s, lane in of.items()} for number, of in lanes.items()}
    if not count:
        raise SimulatorError("nothing to draw: the ranks chosen have nothing to do")
    return {number: Looks(programs[number], lane_of) for number, lane_of in lanes.items()}


def _lanes(program: Program) -> dict[str, str]:
    """Return the row of each stream of *program*, by its name; streams of computation come first."""
    streams = dict.fromkeys(op.stream for op in program.distinct())
    computing = list(dict.fromkeys(op.stream for op in program.distinct() if isinstance(op, Compute)))
    return {name: name for name in [*computing, *(name for name in streams if name not in computing)]}


def _folded(stream: str, lane: str) -> str:
    return lane if stream == "compute" else "transfers"


class Looks:
    """The appearance of the ops of a *program*, as arrays by op: numbers of *lane*, *paint*, *phase*, *micro_batch*.

    *lane_of*: the lane of each stream. *phase* is 1 for the first of `PHASES`, and 0 for ops that are not computation
    of an action.
    """

    def __init__(self, program: Program, lane_of: dict[str, str]) -> None:
        self._program = program
        self.lanes = list(dict.fromkeys(lane_of.values()))
        self.lane = program.column(lambda op: self.lanes.index(lane_of[op.stream]), np.int64)
        numbers: dict[Paint, int] = {}
        self.paint = program.column(lambda op: numbers.setdefault(paint_of(op), len(numbers)), np.int64)
        self.paints = list(numbers)
        self.phase = program.column(_phase, np.int64)
        self.micro_batch = micro_batches(program)
        computes = program.column(lambda op: isinstance(op, Compute), np.bool_)
        self.computing = [bool(computes[self.lane == number].any()) for number in range(len(self.lanes))]

    def text_of(self, op: int) -> str:
        """Return the text in the box of the op of that index: its action, else its name."""
        if not self.phase[op]:
            return self.names[op]
        number = int(self.micro_batch[op])
        return f"{LETTERS[int(self.phase[op]) - 1]}{'' if number == NO_MICRO_BATCH else number}"

    @cached_property
    def names(self) -> list[str]:
        """The names of the ops, by index."""
        return op_names(self._program)


LETTERS = tuple(PHASES)


def _phase(op: Op) -> int:
    return 1 + LETTERS.index(op.action.phase) if isinstance(op, Compute) and op.action else 0


def _visible(own: Columns, window: tuple[float, float]) -> Columns:
    """Return the spans that are in *window* at least with their wait."""
    inside = (own.end >= window[0]) & (own.ready <= window[1])
    return own if inside.all() else _among(own, inside)


def _among(own: Columns, kept: npt.NDArray[np.bool_]) -> Columns:
    op, step, ready, begin, end, communication = own
    return Columns(op[kept], step[kept], ready[kept], begin[kept], end[kept], communication[kept])


def _boxes(spans: Columns, look: Looks, window: tuple[float, float]) -> list[Boxes]:
    """Return the boxes of *spans*, clipped to *window*; waits come first, so that work is drawn over them."""
    paint = look.paint[spans.op]
    parts = [(WAIT, spans.ready, spans.begin)]
    for number, one in enumerate(look.paints):
        mine = paint == number
        parts.append((one, spans.begin[mine], spans.end[mine]))
    cut = ((one, np.clip(begin, *window), np.clip(end, *window)) for one, begin, end in parts)
    lasting = ((one, begin, end, end > begin) for one, begin, end in cut)
    return [Boxes(one, begin[kept], end[kept]) for one, begin, end, kept in lasting if kept.any()]


def _labels(spans: Columns, look: Looks, window: tuple[float, float], pixel: float) -> list[Label]:
    """Return labels of actions and communications that are at least two characters wide; *pixel*: its length in s."""
    order = np.argsort(spans.begin, kind="stable")
    begin, end, op = spans.begin[order], spans.end[order], spans.op[order]
    phase, number = look.phase[op], look.micro_batch[op]
    # computations of one action have one label, unless something is visible between them
    goes_on = (phase[1:] > 0) & (phase[1:] == phase[:-1]) & (number[1:] == number[:-1])
    goes_on &= begin[1:] - np.maximum.accumulate(end)[:-1] < pixel
    firsts = np.flatnonzero(np.append(True, ~goes_on)[: len(op)])
    if not len(firsts):
        return []
    left = np.maximum(begin[firsts], window[0])
    right = np.minimum(np.maximum.reduceat(end, firsts), window[1])
    wide = np.flatnonzero(right - left >= LEAST_LABEL * pixel)
    places = op[firsts[wide]].tolist()
    rows = zip(places, left[wide].tolist(), right[wide].tolist(), strict=True)
    return [Label(look.text_of(one), since, until, look.paints[look.paint[one]]) for one, since, until in rows]
