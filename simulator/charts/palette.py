"""Colours of charts: computation in blues and greens, communication in warm tones.

The colours are those of Okabe and Ito ("Color Universal Design", 2008) and of Paul Tol's muted scheme ("Colour
Schemes", 2021), chosen so that neighbours differ in lightness too and stay apart for colour-blind eyes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import PHASES


class Paint(NamedTuple):
    """The label of a kind of box in a legend, its fill, and a text colour (*ink*) that is legible on it."""

    label: str
    fill: str
    ink: str = "black"


PHASE_PAINTS = {
    "F": Paint(f"F {PHASES['F']}", "#56B4E9"),
    "B": Paint("B backward", "#0072B2", "white"),
    "I": Paint("I backward, input", "#332288", "white"),
    "W": Paint("W backward, weights", "#44AA99"),
    "R": Paint(f"R {PHASES['R']}", "#B7E0D2"),
    "O": Paint(f"O {PHASES['O']}", "#4D4D4D", "white"),
}
OTHER_COMPUTE = Paint("other computation", "#8DA0B6")
COPY = Paint("copy GPU - host", "#999933")
HOST = Paint("host", "#BBBBBB")
WAIT = Paint("waiting for partners", "#F2F2F2")
IDLE = Paint("bubble", "#E4E4E4")

AXIS_FILLS = {
    "tp": ("#F0E442", "black"),
    "dp": ("#E69F00", "black"),
    "pp": ("#CC79A7", "black"),
    "ps": ("#D55E00", "black"),
    "ep": ("#882255", "white"),
    "cp": ("#AA4499", "white"),
    "domain": ("#117733", "white"),
}
SPARE_FILLS = (("#DDCC77", "black"), ("#CC6677", "black"), ("#661100", "white"), ("#FFAABB", "black"))
"""For other axes, by a hash of their names."""

SERIES_FILLS = ("#0072B2", "#E69F00", "#44AA99", "#CC79A7", "#332288", "#D55E00", "#4D4D4D", "#999933")
"""For series that are not part of a timeline, such as predictions of several scenarios."""

PART_PAINTS = {
    "compute": Paint("computing", "#0072B2", "white"),
    "recompute": Paint("recomputing", "#B7E0D2"),
    "optimizer": Paint("optimizer", "#4D4D4D", "white"),
    "copy": COPY,
    "host": HOST,
    "bubble": Paint("bubble (waiting)", "#E4E4E4"),
}

CATEGORY_FILLS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#4D4D4D",
    "activations": "#56B4E9",
    "buffers": "#CC79A7",
}


def axis_paint(name: str) -> Paint:
    """Return the paint of communication over the axes of family *name*."""
    fill, ink = AXIS_FILLS.get(name) or SPARE_FILLS[sum(map(ord, name)) % len(SPARE_FILLS)]
    return Paint(f"{name} communication", fill, ink)


def paint_of(op: Op) -> Paint:
    """Return the paint of boxes of *op*."""
    match op:
        case Compute():
            return PHASE_PAINTS.get(op.action.phase, OTHER_COMPUTE) if op.action else OTHER_COMPUTE
        case Copy() if op.on_cores and op.action:
            return PHASE_PAINTS.get(op.action.phase, OTHER_COMPUTE)
        case Send() | Recv() | Collective():
            return axis_paint(family(op.over))
        case Copy():
            return COPY
        case Delay():
            return HOST
    raise TypeError(f"{type(op).__name__} is no kind of op")


def part_paint(part: str) -> Paint:
    """Return the paint of a part of a breakdown, such as ``compute`` or ``exposed_dp``."""
    if part.startswith("exposed_"):
        name = part.removeprefix("exposed_")
        return Paint(f"exposed {name} communication", *axis_paint(name)[1:])
    return PART_PAINTS.get(part, OTHER_COMPUTE)


def category_fill(category: str) -> str:
    """Return the fill of a category of memory; it is the same on the host and on the GPU."""
    return CATEGORY_FILLS.get(category.removeprefix("host."), "#999933")


def categories_in_order(categories: Iterable[str]) -> list[str]:
    """Return *categories* of memory in the order of stacking: resident ones, activations, buffers; on the GPU first.

    >>> categories_in_order(["buffers", "mine", "host.optimizer", "parameters"])
    ['parameters', 'buffers', 'mine', 'host.optimizer']
    """
    known = list(CATEGORY_FILLS)
    named = list(dict.fromkeys(categories))
    gpu = [name for name in known if name in named]
    host = [f"host.{name}" for name in known if f"host.{name}" in named]
    others = sorted(name for name in named if name not in gpu and name not in host)
    return gpu + others + host


def in_order(paints: Iterable[Paint]) -> list[Paint]:
    """Return the distinct *paints* in the order of a legend: phases, other computation, axes, copies, delays, waits."""
    first = [*PHASE_PAINTS.values(), OTHER_COMPUTE]
    last = [COPY, HOST, WAIT, IDLE]
    found = list(dict.fromkeys(paints))
    middle = sorted(paint for paint in found if paint not in first and paint not in last)
    return [p for p in first if p in found] + middle + [p for p in last if p in found]


def parts_in_order(parts: Iterable[str]) -> list[str]:
    """Return *parts* of breakdowns in order: computation, exposed communication, copies, delays, bubble."""
    first, last = ["compute", "recompute", "optimizer"], ["copy", "host", "bubble"]
    named = list(dict.fromkeys(parts))
    middle = [part for part in named if part not in first and part not in last]
    return [p for p in first if p in named] + middle + [p for p in last if p in named]
