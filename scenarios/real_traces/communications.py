"""Communications of a step by kind and size: calls, time, bus bandwidth, waits, overlap with computation.

A communication ends on all ranks together, and transfers when the last has come: that one has the shortest duration,
and each other rank waited for as long as its own exceeds that. No clocks are compared.

A communication ends on all ranks together, and it transfers when the last rank has come. So the rank with the shortest
duration came last, and each other rank waited for as long as its own duration exceeds that. No clocks are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from clustersim.scenarios.real_traces.pieces_of_work import PHASES, Call, Piece
from clustersim.scenarios.real_traces.rank_trace import RankTrace
from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.intervals import partition

PAIRS = ("send", "recv", "send_recv")
"""Messages: their partners are not named in a trace. The fastest message of the same size stands for the transfer."""


def with_waits(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return *traces* with the waits of their communications."""
    waits: dict[tuple[int, int], float] = {}
    for shortest, members in _matched(traces):
        for place, number, seconds in members:
            waits[place, number] = seconds - shortest
    changed = []
    for place, trace in enumerate(traces):
        pieces = (piece._replace(wait=waits.get((place, n), 0.0)) for n, piece in enumerate(trace.pieces))
        changed.append(replace(trace, pieces=tuple(pieces)))
    return changed


Member = tuple[int, int, float]
"""(place of the trace, number of the piece, its duration in s)."""


def _matched(traces: Sequence[RankTrace]) -> list[tuple[float, list[Member]]]:
    """Return the shortest duration and the members of each communication, or of all messages of one size."""
    sequences: dict[tuple[str, str], dict[int, list[Member]]] = defaultdict(lambda: defaultdict(list))
    messages: dict[float, list[Member]] = defaultdict(list)
    for place, trace in enumerate(traces):
        for number, piece in enumerate(trace.pieces):
            if piece.call is None:
                continue
            member = place, number, piece.seconds
            if piece.call.kind in PAIRS and piece.call.nbytes is not None:
                messages[piece.call.nbytes].append(member)
            elif piece.call.kind not in PAIRS and piece.begin >= trace.steps[0].begin:
                sequences[piece.call.kind, piece.call.group][place].append(member)
    found = [(min(one[2] for one in members), members) for members in messages.values()]
    for by_rank in sequences.values():
        if len(by_rank) > 1 and len({len(row) for row in by_rank.values()}) == 1:
            for members in zip(*by_rank.values(), strict=True):
                found.append((min(one[2] for one in members), list(members)))
    return found


MESSAGES = "messages"
"""Sends and receives together: NCCL runs both in one kernel."""


class Size(NamedTuple):
    """Communications of one *call*: *per_step* in a step, median *seconds* without *waited* seconds, the mean."""

    call: Call
    per_step: float
    seconds: float
    waited: float

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth, bytes/s; None if the bytes are not known."""
        call = self.call
        if call.nbytes is None or not self.seconds:
            return None
        if call.kind not in metrics.BUS_FACTOR:
            return metrics.algbw(call.nbytes, self.seconds)
        return metrics.busbw(call.kind, call.nbytes, call.ranks, self.seconds)


class ExposedTime(NamedTuple):
    """Seconds of a step in which a kind of communication transfers, and of these the *exposed* ones."""

    seconds: float
    exposed: float

    @property
    def hidden(self) -> float:
        """The seconds that are hidden behind computation."""
        return self.seconds - self.exposed


def family(kind: str) -> str:
    """Return *kind*, or `MESSAGES` for a send or a receive."""
    return MESSAGES if kind in PAIRS else kind


def sizes(traces: Sequence[RankTrace]) -> list[Size]:
    """Return the communications of *traces* by kind, bytes and ranks, the longest in all first; counts are per rank."""
    found: dict[Call, list[Piece]] = defaultdict(list)
    for trace in traces:
        for piece in trace.measured():
            if piece.call is not None:
                found[piece.call._replace(group="")].append(piece)
    steps = sum(len(trace.steps) for trace in traces)
    rows = [
        Size(
            call,
            len(pieces) / steps,
            median(piece.seconds - piece.wait for piece in pieces),
            sum(piece.wait for piece in pieces) / len(pieces),
        )
        for call, pieces in found.items()
    ]
    return sorted(rows, key=lambda one: -one.per_step * (one.seconds + one.waited))


def overlaps(trace: RankTrace) -> dict[str, ExposedTime]:
    """Return the overlap of each kind of communication of *trace* with computation, in a step."""
    pieces = trace.measured()
    window = trace.steps[0].begin, trace.steps[-1].end
    computing = [(piece.begin, piece.end, 0) for piece in pieces if piece.part in PHASES]
    found = {}
    for kind in dict.fromkeys(family(piece.call.kind) for piece in pieces if piece.call is not None):
        own = [
            (piece.begin + piece.wait, piece.end, 1)
            for piece in pieces
            if piece.call is not None and family(piece.call.kind) == kind
        ]
        alone = _seconds(own, window)[1]
        exposed = _seconds([*computing, *own], window)[1]
        found[kind] = ExposedTime(alone / len(trace.steps), exposed / len(trace.steps))
    return found


def _seconds(rows: Sequence[tuple[float, float, int]], window: tuple[float, float]) -> list[float]:
    begins, ends, kinds = (np.array(column) for column in zip(*rows, strict=True))
    seconds: list[float] = partition(begins, ends, kinds.astype(np.int64), 2, window).tolist()
    return seconds


def large(several: Sequence[Size], kind: str) -> list[Size]:
    """Return the communications of *kind* without small ones, such as those of a loss or a norm."""
    mine = [one for one in several if family(one.call.kind) == kind and one.call.nbytes]
    total = sum(one.per_step * (one.call.nbytes or 0.0) for one in mine)
    return [one for one in mine if (one.call.nbytes or 0.0) >= SMALL * total]


def like(one: Size, several: Sequence[Size]) -> Size | None:
    """Return the communication of *several* with the kind, the ranks and nearly the bytes of *one*; None without."""
    nbytes = one.call.nbytes or 0.0
    alike = (
        other
        for other in several
        if (other.call.kind, other.call.ranks) == (one.call.kind, one.call.ranks)
        and abs((other.call.nbytes or 0.0) - nbytes) <= ALIKE * nbytes
    )
    return next(alike, None)


ALIKE = 0.05
"""Relative difference of bytes up to which two communications are compared: padding, and what fills a bucket."""

SMALL = 0.005
"""Share of the bytes of a step below which a communication is left out when sizes are compared."""
