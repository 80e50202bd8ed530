"""One period of the steady state of a step: what a chart shows of a step whose ops are too short to be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.timeline import Columns, Floats, Timeline, micro_batches
from clustersim.simulator.schedule.ops import Compute, Op

ALIKE = 0.02
"""Share by which the lengths of two periods may differ."""
LONGEST_CYCLE = 64
"""Forward passes of one period at most: an interleaved order repeats itself after as many as it has stages."""
MOST_OPS = 200
"""Median computations of a rank in one period at most: each has some six pixels of a chart."""


class Period(NamedTuple):
    """A period of *rank* from *begin* to *end* (s), and *what* it is."""

    rank: int
    begin: float
    end: float
    what: str


def steady_period(timeline: Timeline, ranks: Sequence[int]) -> Period | None:
    """Return a period of the steady state of the rank in the middle of *ranks*; None if nothing repeats.

    First the period of micro-batches: from a forward pass in the middle of the step to the next one that is followed
    alike. If it has too many ops to tell them apart, or there is none, the period of layers: from the backward pass of
    a layer in the middle to that of the next.
    """
    rank = ranks[len(ranks) // 2]
    periods = list(_periods(timeline, rank))
    computes = timeline.schedule.program(rank).column(lambda op: isinstance(op, Compute), np.bool_)
    own = timeline.of(rank)
    lengths = (own.end - own.begin)[computes[own.op]]
    seen = MOST_OPS * float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 0.0
    legible = [one for one in periods if one.end - one.begin <= seen]
    return next(iter(legible), min(periods, key=lambda one: one.end - one.begin, default=None))


def _periods(timeline: Timeline, rank: int) -> Iterator[Period]:
    """Yield the periods of *rank*: of micro-batches, then of layers in the backward and in the forward pass."""
    own, program = timeline.of(rank), timeline.schedule.program(rank)
    last = own.step == own.step.max(initial=0)
    for phase, what in (("F", "micro-batches"), ("B", "layers"), ("F", "layers")):
        layers: dict[str, int] = {}

        def number(op: Op, phase: str = phase, what: str = what, layers: dict[str, int] = layers) -> int:
            """Number the part of the phase that *op* belongs to, from 1; 0 if it is of another phase."""
            if not isinstance(op, Compute) or op.action is None or op.action.phase != phase:
                return 0
            if what == "layers":
                return 0 if op.layer is None else 1 + layers.setdefault(op.layer, len(layers))
            return 1 + op.action.stage

        part = program.column(number, np.int64)[own.op]
        begins = _begins(own, np.stack((part, micro_batches(program)[own.op])), last & (part > 0), what)
        found = _period(begins, _middle(own, program.column(_phase, np.int64)))
        if found is not None:
            begin, end, cycle = found
            yield Period(rank, begin, end, _told(what, cycle))


def _begins(own: Columns, key: np.ndarray, kept: np.ndarray, what: str) -> Floats:
    """Return when the parts that *key*, of shape (2, spans), numbers begin, ascending; of micro-batches the first."""
    order = np.flatnonzero(kept)
    order = order[np.argsort(own.begin[order], kind="stable")]
    if not len(order):
        return np.zeros(0)
    if what == "micro-batches":
        _, firsts = np.unique(key[:, order], axis=1, return_index=True)
    else:
        firsts = np.flatnonzero(np.append(True, np.any(np.diff(key[:, order]) != 0, axis=0)))
    return np.asarray(np.sort(own.begin[order[firsts]]), np.float64)


def _phase(op: Op) -> int:
    """Return 1 for a forward pass, 2 for a backward pass, 0 for anything else."""
    return " FB".find(op.action.phase) if isinstance(op, Compute) and op.action is not None else 0


def _middle(own: Columns, phase: np.ndarray) -> float:
    """Return the middle of the time in which forward and backward passes alternate; of all time if they do not, s."""
    forward, backward = (own.begin[phase[own.op] == number] for number in (1, 2))
    if not len(forward) or not len(backward):
        return float(own.begin.mean())
    return float(backward.min() + forward.max()) / 2


def _period(begins: Floats, moment: float) -> tuple[float, float, int] | None:
    """Return (begin, end, parts) of the shortest period of *begins* around *moment* (s); None if nothing repeats.

    >>> _period(np.array([0.0, 1.0, 3.0, 4.0, 6.0, 7.0, 9.0, 10.0, 12.0]), 6.0)
    (6.0, 9.0, 2)
    """
    middle = int(np.clip(np.searchsorted(begins, moment), len(begins) // 4, 3 * len(begins) // 4))
    for cycle in range(1, min(LONGEST_CYCLE, len(begins) // 4) + 1):
        lengths = begins[cycle:] - begins[:-cycle]
        own = lengths[middle - cycle : middle + cycle]
        if middle >= cycle and len(own) == 2 * cycle and own.min() > 0 and own.max() - own.min() <= ALIKE * own.max():
            return float(begins[middle]), float(begins[middle + cycle]), cycle
    return None


def _told(what: str, cycle: int) -> str:
    one = {"micro-batches": "micro-batch", "layers": "layer"}[what]
    return f"a {one}" if cycle == 1 else f"{cycle} {what}"
