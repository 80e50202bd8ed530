"""A schedule says what every rank does: ops, programs, the mesh, pipeline orders, matching of ops, and the check."""

from simulator.schedule.ops import CATEGORIES, COLLECTIVES, Collective, Compute, Copy, Delay, Op, Recv, Send
from simulator.schedule.program import Block, Program
from simulator.schedule.schedule import Schedule

__all__ = [
    "CATEGORIES",
    "COLLECTIVES",
    "Block",
    "Collective",
    "Compute",
    "Copy",
    "Delay",
    "Op",
    "Program",
    "Recv",
    "Schedule",
    "Send",
]
