"""Memory for a replay: the buffers of all ranks must fit into the memory of one machine."""

from __future__ import annotations

from pathlib import Path

from simulator.replay.buffers import total_bytes
from simulator.schedule import Schedule

COPIES = 2
"""Gloo reduces in memory of its own, as large as the vector."""

MEMINFO = Path("/proc/meminfo")


def available_bytes() -> float:
    """Return the bytes available without swapping (proc(5), MemAvailable); infinite if unknown."""
    if not MEMINFO.exists():
        return float("inf")
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return 1024.0 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else float("inf")


def fitting_scale(schedule: Schedule, available: float) -> float:
    """Return the factor on all communicated bytes with which a replay takes at most half of *available* bytes.

    It is 1, or a half of it, a quarter ...
    """
    factor, needed = 1.0, COPIES * total_bytes(schedule)
    while factor * needed > available / 2:
        factor /= 2
    return factor
