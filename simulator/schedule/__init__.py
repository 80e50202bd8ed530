"""Schedules: what every rank does. Ops, programs, meshes, orders of pipelines, which op meets which, and the check."""

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
