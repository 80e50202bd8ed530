"""Waits of communications: the time in a communication before the last of its ranks has come.

A communication ends on all ranks together, and it transfers when the last rank has come. So the rank with the shortest
duration came last, and each other rank waited for as long as its own duration exceeds that. No clocks are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from scenarios.explain.rank_trace import RankTrace

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
