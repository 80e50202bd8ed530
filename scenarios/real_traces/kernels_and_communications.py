"""Kernels of a step by class and shape, beside their price on the scenario's GPU; and its communications by kind and
size: calls, time, bus bandwidth, waits, overlap with computation.

A communication ends on all ranks together, and it transfers when the last rank has come. So the rank with the shortest
duration came last, and each other rank waited for as long as its own duration exceeds that. No clocks are compared.
"""

from __future__ import annotations

import re
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
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import BYTES, matmul
from clustersim.simulator.reading.errors import ClusterError

PRODUCT, ATTENTION, OTHER = "matrix products", "attention", "other kernels"
"""Classes of kernels. Convolutions are matrix products."""

_ATTENTION = re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)
_PRODUCT = re.compile(r"gemm|cutlass|nvjet|cublas|xmma|hmma|conv|wgrad|dgrad|winograd|Cijk_", re.IGNORECASE)
_PRODUCT_OPERATOR = re.compile(r"::(mm|addmm|bmm|baddbmm|linear|matmul|addmv|dot|\w*conv\w*)$")
_NAMESPACE = "(anonymous namespace)::"
_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)


class Kernels(NamedTuple):
    """Equal kernels: *per_step* in a step and mean *seconds* of one; *priced*: the price of one, s, if there is one."""

    name: str
    phase: str
    per_step: float
    seconds: float
    priced: float | None = None

    @property
    def excess(self) -> float:
        """Seconds of a step over the price."""
        return self.per_step * (self.seconds - self.priced) if self.priced is not None else 0.0


def kernel_class(piece: Piece) -> str:
    """Return the class of a real kernel or operator."""
    if _ATTENTION.search(piece.name) or _ATTENTION.search(piece.op):
        return ATTENTION
    if piece.shape is not None or _PRODUCT.search(piece.name) or _PRODUCT_OPERATOR.search(piece.op):
        return PRODUCT
    return OTHER


def title(piece: Piece) -> str:
    """Return a short name: the operator with the shape of its product, or the kernel without its arguments."""
    if piece.shape is not None:
        batch, m, n, k = piece.shape
        return f"{piece.op.removeprefix('aten::')} {f'{batch} x ' if batch > 1 else ''}{m} x {n} x {k}"
    plain = piece.name.replace(_NAMESPACE, "").removeprefix("void ")
    name = _ARGUMENTS.sub("", plain).rpartition("::")[2] or piece.name
    operator = piece.op.removeprefix("aten::")
    return f"{operator} ({name[:40]})" if operator and operator != name and piece.op != piece.name else name[:60]


def longest(traces: Sequence[RankTrace], gpu: Accelerator | None = None) -> list[Kernels]:
    """Return the kernels of *traces* by title and phase, the longest in all first; *gpu* prices products."""
    found: dict[tuple[str, str], list[Piece]] = defaultdict(list)
    for trace in traces:
        for piece in trace.measured():
            if piece.part in PHASES:
                found[title(piece), piece.part].append(piece)
    steps = sum(len(trace.steps) for trace in traces)
    rows = [
        Kernels(
            name,
            phase,
            len(some) / steps,
            sum(p.seconds for p in some) / len(some),
            price(some[0], gpu) if gpu else None,
        )
        for (name, phase), some in found.items()
    ]
    return sorted(rows, key=lambda one: -one.per_step * one.seconds)


def by_class(traces: Sequence[RankTrace]) -> dict[str, float]:
    """Return the seconds of the kernels of *traces* by class, the longest first."""
    found = dict.fromkeys((PRODUCT, ATTENTION, OTHER), 0.0)
    for trace in traces:
        for piece in trace.measured():
            if piece.part in PHASES:
                found[kernel_class(piece)] += piece.seconds
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def by_layer(traces: Sequence[RankTrace]) -> dict[tuple[str, str], float]:
    """Return the seconds of the kernels of a rank and step by phase and layer, for traces that name layers."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    steps = sum(len(trace.steps) for trace in traces)
    for trace in traces:
        for piece in trace.measured():
            if piece.layer and piece.part in PHASES:
                found[piece.part, piece.layer] += piece.seconds / steps
    return found


def price(piece: Piece, gpu: Accelerator) -> float | None:
    """Return the seconds of the matrix product of *piece* on *gpu*; None if it is none, or *gpu* cannot price it."""
    if piece.shape is None or piece.precision not in BYTES:
        return None
    batch, m, n, k = piece.shape
    try:
        return gpu.kernel_seconds(matmul(m, n, k, batch=batch, precision=piece.precision))
    except ClusterError:
        return None


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
