"""NCCL's tuning tables, version by version: its latencies, and the share of the bandwidth that its protocols reach.

All figures are from NVIDIA/nccl, src/graph/tuning.cc, topo.h and topo.cc at the tags v2.5.6-1 and v2.10.3-1 and at
5067397c (2026-06, here "2.30"). They have the order and the units of the source: us and GB/s, for LL, LL128 and Simple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.network.transport.group_properties import NET, NVLINK, PCI

PROTOCOLS = ("LL", "LL128", "Simple")

LL_CEILINGS: dict[tuple[str, str, str], float] = {
    ("any", "LL", "nvlink2"): 39.0e9,
    ("any", "LL", "nvlink3"): 87.7e9,
    ("any", "LL", "nvlink4"): 141.0e9,
    ("any", "LL", "nvlink5"): 282.0e9,
    ("any", "LL", "intel 2"): 39.0e9,
    ("any", "LL", "intel 4"): 20.4e9,
    ("any", "LL", "amd 2"): 22.5e9,
    ("any", "LL", "amd 4"): 19.0e9,
}
"""llMaxBws, bytes/s: for one server by the generation of its GPUs, for more by the vendor of the processor and the
number of servers (2, or more).
"""

AMPERE_LIMIT = {"nvlink3": 235e9}
"""``if (compCap80) busBw = min(busBw, 235)``, GB/s, v2.10.3. Applied within one server, where links could carry more.
"""

EARLY_TREE_CEILINGS = {
    ("tree", protocol, where): limit
    for protocol in PROTOCOLS
    for where, limit in {
        "nvlink2": 90e9,
        "nvlink3": 90e9,
        **dict.fromkeys(("intel 2", "intel 4", "amd 2", "amd 4"), 70e9),
    }.items()
}
"""``min(busBw*.9, nNodes > 1 ? 70.0 : 90.0)``, v2.5.6."""

Triple = tuple[float, float, float]

RING_LL128: Mapping[str, Triple] = {
    "nvlink2": (20, 20, 20),
    "nvlink3": (20, 20, 20),
    "nvlink4": (36.7, 36.7, 36.7),
    "nvlink5": (40, 40, 40),
}
TREE_LL128: Mapping[str, Triple] = {**RING_LL128, "nvlink4": (36.7, 36.7, 29.0), "nvlink5": (55.6, 31.67, 20.0)}
TREE: Mapping[str, Triple] = {
    "nvlink2": (26.5, 18.5, 10.0),
    "nvlink3": (24.0, 23.6, 17.8),
    "nvlink4": (38.7, 41.4, 36.0),
    "nvlink5": (70.0, 42.8, 24.0),
}
"""perChMaxRingLL128Bws, perChMaxTreeLL128Bws, perChMaxTreeBws, GB/s, "2.30", by the NVLink generation of the GPU; for
one server, two, and more. The first two rows are as in v2.10.3. A channel there is a ring before channels are doubled.
"""


@dataclass(frozen=True)
class Tables:
    """The tables of one version: latencies in us, and shares of bandwidth.

    *ring* and *tree*: shares within one server. *gather_share*: of a ring by LL there, for all but all-reduces and
    reductions. *tree_across*: of a tree across servers.
    """

    base: Mapping[str, Triple]
    hop: Mapping[str, Mapping[str, Triple]]
    ring: Triple
    gather_share: float
    tree: Triple
    tree_across: Triple
    nvlink: float
    intra_node_penalty: float
    large_message_factor: float
    large_message_bytes: float
    corrections: Mapping[tuple[str, str], tuple[float, ...]]
    channels: bool
    single_gpu_share: float | None
    ceilings: Mapping[tuple[str, str, str], float]
    limits: Mapping[str, float] = field(default_factory=dict)


TREE_CORRECTION: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("tree", "LL"): (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    ("tree", "LL128"): (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7) + (0.6,) * 6 + (0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    ("tree", "Simple"): (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
"""treeCorrectionFactor, for 64 B, 128 B ... 256 MiB."""

VERSIONS: dict[str, Tables] = {
    "2.5": Tables(
        base={"tree": (4.4, 4.4, 0), "ring": (3.6, 3.6, 8.4)},
        hop={
            NVLINK: {"tree": (0.5, 1.9, 28), "ring": (0.4, 2.5, 5.7)},
            PCI: {"tree": (1.0, 1.9, 28), "ring": (1.0, 2.5, 5.7)},
            NET: {"tree": (5.0, 7.5, 50), "ring": (0.9, 2.5, 6.6)},
        },
        ring=(1 / 4, 120 / 128, 1),
        gather_share=1 / 4,
        tree=(0.9 / 3, 0.9 * 7 / 9, 0.9),
        tree_across=(0.9 / 3, 0.9 * 7 / 9, 0.9),
        nvlink=21 / 25,
        intra_node_penalty=1.0,
        large_message_factor=1.0,
        large_message_bytes=0,
        corrections={},
        channels=False,
        single_gpu_share=None,
        ceilings=EARLY_TREE_CEILINGS,
    ),
    "2.10": Tables(
        base={"tree": (4.4, 4.4, 0), "ring": (3.6, 10.0, 8.4)},
        hop={
            NVLINK: {"tree": (0.52, 1.25, 28), "ring": (0.47, 1.9, 3.4)},
            PCI: {"tree": (1.0, 1.9, 28), "ring": (1.0, 2.5, 5.7)},
            NET: {"tree": (5.0, 8.5, 28), "ring": (2.7, 4.0, 9.6)},
        },
        ring=(1 / 4, 0.92, 1),
        gather_share=1 / 3,
        tree=(0.92 / 3.8, 0.92 * 7 / 9, 0.92),
        tree_across=(0.92 / 3.8, 0.92 * 120 / 128, 0.92),
        nvlink=22 / 25,
        intra_node_penalty=1.8,
        large_message_factor=1.9,
        large_message_bytes=65536 / 16,
        corrections=TREE_CORRECTION,
        channels=True,
        single_gpu_share=0.7,
        ceilings=LL_CEILINGS,
        limits=AMPERE_LIMIT,
    ),
    "2.30": Tables(
        base={"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)},
        hop={
            NVLINK: {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
            PCI: {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
            NET: {"tree": (5.0, 8.5, 14), "ring": (2.7, 4.0, 14.0)},
        },
        ring=(1 / 2, 0.92, 1),
        gather_share=1 / 2,
        tree=(0.92 / 3.8, 0.92 * 7 / 9, 0.92),
        tree_across=(0.92 / 3.8, 0.92 * 120 / 128, 0.92),
        nvlink=20 / 25,
        intra_node_penalty=1.0,
        large_message_factor=1.4,
        large_message_bytes=64 * 16,
        corrections=TREE_CORRECTION,
        channels=True,
        single_gpu_share=None,
        ceilings=LL_CEILINGS,
    ),
}
"""*nvlink*: what topo.h has for a link of NVLink 2 or 3 (21, 22, 20 GB/s) over the 25 GB/s of the data sheet.
*large_message_factor*: the factor on a ring's latency ("Plateau effect of ring") from *large_message_bytes* per rank.
Version 2.30 has 64 B per rank and channel, here with 16 channels, and 1.9 before Ampere. *channels*: whether it limits
each channel. *single_gpu_share*: the share of LL128 on servers with fewer than two ranks (ppn < 2), if it differs.
"""
