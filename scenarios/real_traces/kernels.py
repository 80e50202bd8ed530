"""Kernels of a step by class and shape, beside their price on the scenario's GPU."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from clustersim.scenarios.real_traces.pieces_of_work import PHASES, Piece
from clustersim.scenarios.real_traces.rank_trace import RankTrace
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
