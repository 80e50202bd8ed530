"""NVLink SHARP inside servers and SHARP between them: switches of both networks add and copy.

NCCL's NVLS across servers, which needs its plugin for SHARP (NCCL 2.18 and later).
"""

from __future__ import annotations

from clustersim.simulator.network.collectives.sharp import in_fabric, through_heads
from clustersim.simulator.network.step import Group, Step


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position: by NVSwitches to the heads, by switches of the fabric, and back by NVSwitches."""
    return through_heads(group, nbytes, in_fabric, inside_switch=True, between_switches=True)
