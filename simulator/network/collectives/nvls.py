"""NVLink SHARP: switches add what all GPUs hold of a part for its owner, and copy the sum from there to all.

NVIDIA, "Upgrading Multi-GPU Interconnectivity with the Third-Generation NVIDIA NVSwitch Chip", 2022: instead of
2 (p - 1) / p of the vector each link carries 1 + 1 / p of it, each way.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.network.collectives.ring import pipeline
from simulator.network.step import Group, Step


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """Sum everywhere: every position's part is added on its way there and copied on its way back."""
    others = [[other for other in range(group.size) if other != owner] for owner in range(group.size)]
    there = [[(other, owner) for other in rest] for owner, rest in enumerate(others)]
    transfers = tuple(pair for lane in there for pair in (*lane, *((owner, other) for other, owner in lane)))
    adds = tuple(place % (2 * group.size - 2) < group.size - 1 for place in range(len(transfers)))
    steps = pipeline(transfers, group.size, nbytes, reduces=False)
    return [replace(step, reduces=adds, in_switch=True) for step in steps]
