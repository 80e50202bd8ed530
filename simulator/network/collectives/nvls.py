"""NVLink SHARP: switches add the contributions of all GPUs to a part for its owner, and copy the sum back to all GPUs.

NVIDIA, "Upgrading Multi-GPU Interconnectivity with the Third-Generation NVIDIA NVSwitch Chip", 2022: each link carries
1 + 1 / p of the vector each way instead of 2 (p - 1) / p.
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.simulator.network.collectives.ring import pipeline
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.network.transport import MOST_HEADS


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position. The switches add each part on the way to its owner and copy it on the way back."""
    owners = min(group.size, MOST_HEADS)
    others = [[other for other in range(group.size) if other != owner] for owner in range(owners)]
    there = [[(other, owner) for other in rest] for owner, rest in enumerate(others)]
    transfers = tuple(pair for lane in there for pair in (*lane, *((owner, other) for other, owner in lane)))
    adds = tuple(place % (2 * group.size - 2) < group.size - 1 for place in range(len(transfers)))
    steps = pipeline(transfers, owners, nbytes, reduces=False)
    return [replace(step, reduces=adds, in_switch=True) for step in steps]
