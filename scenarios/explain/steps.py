"""The training steps of a trace, as torch.profiler marks them: on the host, and on the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from scenarios.explain.piece import LOADING, Piece
from scenarios.explain.trace_file import TraceFile

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


class Step(NamedTuple):
    """The training step of that *number*, from *begin* to *end* (s)."""

    number: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its duration, s."""
        return self.end - self.begin


def marked(file: TraceFile) -> list[Step]:
    """Return the steps that the profiler marked on the host."""
    found: dict[int, Step] = {}
    for event in file.events:
        named = _STEP.match(event.name)
        if named and event.category in ("user_annotation", "cpu_op", "operator", "user annotation", ""):
            number = int(named.group(1)[:12])
            found[number] = Step(number, event.begin, event.end)
    return sorted(found.values(), key=lambda step: step.begin)


def on_gpu(pieces: Sequence[Piece], ranges: Sequence[Step]) -> list[Step]:
    """Return the steps of the GPU: each ends with the last kernel that the host launched in it.

    Of several the first is left out: when it began on the GPU is not known.
    """
    ends, begins = {}, {}
    for step in ranges:
        mine = [piece for piece in pieces if step.begin <= piece.launched < step.end and piece.part != LOADING]
        if mine:
            ends[step.number] = max(*(piece.end for piece in mine), step.end)
            begins[step.number] = min(piece.begin for piece in mine)
    numbers = list(ends)
    if len(numbers) == 1:
        return [Step(numbers[0], begins[numbers[0]], ends[numbers[0]])]
    return [Step(now, ends[before], ends[now]) for before, now in pairwise(numbers)]


def after_backward(pieces: Sequence[Piece], steps: Sequence[Step]) -> tuple[Piece, ...]:
    """Return *pieces* where what follows the last backward kernel of a step belongs to the optimizer."""
    last = {}
    for step in steps:
        ends = [piece.begin for piece in pieces if piece.part == "backward" and step.begin <= piece.begin < step.end]
        last[step] = max(ends, default=step.end)
    return tuple(piece._replace(part="optimizer") if _follows(piece, last) else piece for piece in pieces)


def _follows(piece: Piece, last: Mapping[Step, float]) -> bool:
    """True if *piece* seems to be of the forward pass but comes after the *last* backward kernel of its step."""
    return piece.part == "forward" and any(end < piece.begin < step.end for step, end in last.items())
