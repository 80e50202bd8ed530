"""NCCL, version by version: the model by which it chooses, and what is true of it where measurements say otherwise.

NCCL chooses algorithm and protocol by a model of itself: the tables below. What it then takes is told by the same
tables, but for what measured all-reduces say otherwise: the few figures of ``nccl_fitted.yaml``, a calibration file
that ``clustersim calibrate`` writes, and no factors by which NCCL corrects its choice alone.

All figures of the tables are from NVIDIA/nccl, src/graph/tuning.cc, topo.h and topo.cc at the tags v2.5.6-1 and
v2.10.3-1 and at 5067397c (2026-06, here "2.30"). Tables print as they stand there: us and GB/s, for LL, LL128 and
Simple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from simulator.document import read, validated
from simulator.errors import SimulatorError
from simulator.transport.parameters import overridden, section
from simulator.transport.transport import NET, NVLINK, PCI, Transport

FITTED = Path(__file__).with_name("nccl_fitted.yaml")
"""What is laid over the tables."""

PROTOCOLS = ("LL", "LL128", "Simple")

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "tree", "nvls"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "gather": ("direct",),
    "scatter": ("direct",),
    "all_to_all": ("direct",),
}
"""The last three are grouped sends and receives, always Simple (newer versions send up to 16 KiB by LL). CollNet,
NVLS between servers (NVLSTree) and PAT are not modelled."""

NVLS_CEILINGS = {
    ("nvls", "Simple", "nvlink4"): 0.85 * 18 * 20.6e9,
    ("nvls", "Simple", "nvlink5"): 0.74 * 18 * 40.1e9,
}
"""nvlsEfficiency of Hopper and Blackwell, "2.30", of what their 18 links carry; NCCL has NVLS since it knows these."""

NVLS_LATENCY = 25e-6
"""s, hwLatencies of NVLS over NVLink, "2.30"; its base latency is 0."""

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
"""llMaxBws, bytes/s: in one server by generation of GPU, else by vendor of the processor and 2 or more servers."""

AMPERE_LIMIT = {"nvlink3": 235e9}
"""``if (compCap80) busBw = min(busBw, 235)``, GB/s, v2.10.3; taken in one server, where links could carry more."""

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
"""perChMaxRingLL128Bws, perChMaxTreeLL128Bws, perChMaxTreeBws, GB/s, "2.30", by the NVLinks of the GPU's generation in
one server, two, and more; the first two rows as in v2.10.3. A channel there is a ring before it is doubled."""


@dataclass(frozen=True)
class Tables:
    """What one version prints: latencies in us, and shares of bandwidth (ring; tree in one server, across servers)."""

    base: Mapping[str, Triple]
    hop: Mapping[str, Mapping[str, Triple]]
    ring: Triple
    tree: Triple
    tree_across: Triple
    nvlink: float
    strained: float
    plateau: float
    plateau_bytes: float
    corrections: Mapping[tuple[str, str], tuple[float, ...]]
    channels: bool
    ceilings: Mapping[tuple[str, str, str], float]
    limits: Mapping[str, float] = field(default_factory=dict)


BUFFER_BYTES = 4 * 2**20 + 8 * 512 * 8 * 16 + 8 * 640 * 120 * 8
"""Of a ring's channel: NCCL_BUFFSIZE, 4 MiB unless set (NCCL user guide), for Simple; for LL NCCL_STEPS x
NCCL_LL_MAX_NTHREADS x NCCL_LL_LINES_PER_THREAD lines of 16 B; for LL128 NCCL_STEPS x NCCL_LL128_MAX_NTHREADS x
NCCL_LL128_ELEMS_PER_THREAD elements of 8 B (src/include/devcomm.h, v2.10.3)."""

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
        tree=(0.9 / 3, 0.9 * 7 / 9, 0.9),
        tree_across=(0.9 / 3, 0.9 * 7 / 9, 0.9),
        nvlink=21 / 25,
        strained=1.0,
        plateau=1.0,
        plateau_bytes=0,
        corrections={},
        channels=False,
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
        tree=(0.92 / 3.8, 0.92 * 7 / 9, 0.92),
        tree_across=(0.92 / 3.8, 0.92 * 120 / 128, 0.92),
        nvlink=22 / 25,
        strained=1.8,
        plateau=1.9,
        plateau_bytes=65536 / 16,
        corrections=TREE_CORRECTION,
        channels=True,
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
        tree=(0.92 / 3.8, 0.92 * 7 / 9, 0.92),
        tree_across=(0.92 / 3.8, 0.92 * 120 / 128, 0.92),
        nvlink=20 / 25,
        strained=1.0,
        plateau=1.4,
        plateau_bytes=64 * 16,
        corrections=TREE_CORRECTION,
        channels=True,
        ceilings=LL_CEILINGS,
    ),
}
"""*nvlink*: what topo.h says a link of NVLink 2 or 3 gives (21, 22, 20 GB/s) over the 25 GB/s of the data sheet.
*plateau*: the factor on a ring's latency ("Plateau effect of ring") from *plateau_bytes* per rank; 2.30 asks for 64 B
per rank and channel, taken with 16 channels, and has 1.9 before Ampere."""

NET_SHARE = 12.0 / 12.5
"""NET_BW: 12 GB/s of a port of 100 Gb/s (topo.h)."""

NVLINKS = {"nvlink4": 20.6 / 25, "nvlink5": 40.1 / 50}
"""Shares of the data sheet's bandwidth by the later generations: SM90_NVLINK_BW, SM100_NVLINK_BW (topo.h)."""

SLICES = {"ring": 2}
"""NCCL cuts a ring's chunk in two: ALLREDUCE_CHUNKSTEPS / ALLREDUCE_SLICESTEPS, NCCL_STEPS / 2 over NCCL_STEPS / 4
(src/include/collectives.h, v2.10.3)."""

WIRED = frozenset({NVLINK, PCI, NET})
"""NCCL adds what a network says of its latency, and InfiniBand's says nothing (props->latency = 0, net_ib.cc)."""

PCIE: Mapping[str, float] = {"pcie3": 12e9, "pcie4": 24e9, "pcie5": 48e9}
"""PCI_BW: 12 GB/s for 16 lanes of generation 3, in proportion to the lanes' rate after that (topo.cc, kvDictPciGen)."""

BLOCKS = 2
"""Thread blocks for each ring that the search finds: channels are doubled (connect.cc, ncclTopoPostset)."""


CHANNEL_BYTES = {
    ("ring", "LL"): (0, 512 * 8),
    ("tree", "LL"): (512 * 8, 0),
    **{(name, "LL128"): (640 * 8, 0) for name in ("ring", "tree")},
    **{(name, "Simple"): (512 * 64, 0) for name in ("ring", "tree")},
}
"""Threads of a block (NCCL_LL_MAX_NTHREADS, NCCL_LL128_MAX_NTHREADS, NCCL_SIMPLE_MAX_NTHREADS) times the bytes of the
vector that each should have (NCCL_LL_THREAD_THRESHOLD, of a ring's rank; NCCL_LL128_..., NCCL_SIMPLE_...): enqueue.cc,
getAlgoInfo; devcomm.h and enqueue.h, v2.10.3."""


@cache
def nccl(version: str = "2.10") -> Transport:
    """NCCL of that *version*; raises `SimulatorError` where there are no tables for it."""
    model = tuning_model(version)
    bare = replace(model, believed=model, plateau={}, corrections={}, ring_ceilings={})
    library = replace(bare, hides=True, limits=AMPERE_LIMIT, slices=SLICES)
    return overridden(library, validated(read(FITTED), section(), ("transport",)))


def tuning_model(version: str) -> Transport:
    """What NCCL of that *version* believes of itself; raises `SimulatorError` where there are no tables for it."""
    if version not in VERSIONS:
        raise SimulatorError(f'NCCL has no tables for version "{version}"; there are: {", ".join(VERSIONS)}')
    tables = VERSIONS[version]
    return Transport(
        "nccl",
        version,
        ALGORITHMS,
        protocols=PROTOCOLS,
        messages=("Simple",),
        base_latency=_base(tables),
        hop_latency=_hop(tables),
        wired=WIRED,
        strained={"LL": tables.strained},
        plateau={("ring", "Simple"): tables.plateau},
        plateau_bytes=tables.plateau_bytes,
        efficiency={NVLINK: tables.nvlink, **NVLINKS, NET: NET_SHARE},
        attainable=PCIE,
        limits=tables.limits,
        shares=_shares(tables),
        ceilings={**tables.ceilings, **NVLS_CEILINGS},
        ring_ceilings=_ring_ceilings(tables) if tables.channels else {},
        corrections=tables.corrections,
        nvlink_only=frozenset({"LL128"}),
        switch_only={"nvls": tuple(NVLINKS)},
        blocks=BLOCKS,
        channel_bytes=CHANNEL_BYTES,
        buffer_bytes=BUFFER_BYTES,
        reorders=True,
        tagged=False,
    )


def _base(tables: Tables) -> dict[tuple[str, str], float]:
    rows = {(name, p): us * 1e-6 for name, row in tables.base.items() for p, us in zip(PROTOCOLS, row, strict=True)}
    return {**rows, ("nvls", "Simple"): NVLS_LATENCY}


def _hop(tables: Tables) -> dict[tuple[str, str, str], float]:
    rows = {
        (hop, name, p): us * 1e-6
        for hop, rows in tables.hop.items()
        for name, row in rows.items()
        for p, us in zip(PROTOCOLS, row, strict=True)
    }
    return {**rows, (NVLINK, "nvls", "Simple"): 0.0}


def _shares(tables: Tables) -> dict[tuple[str, str, bool], float]:
    rows = {
        ("ring", False): tables.ring,
        ("ring", True): tables.ring,
        ("tree", False): tables.tree,
        ("tree", True): tables.tree_across,
    }
    return {(name, p, across): s for (name, across), row in rows.items() for p, s in zip(PROTOCOLS, row, strict=True)}


def _ring_ceilings(tables: Tables) -> dict[tuple[str, str, str], tuple[float, ...]]:
    found = {("ring", "LL128", kind): tuple(1e9 * limit for limit in row) for kind, row in RING_LL128.items()}
    for kind, row in TREE.items():
        found["tree", "Simple", kind] = tuple(1e9 * limit for limit in row)
        # of a tree's limit LL128 gets its share of what a tree gets
        shares = (tables.tree[1] / tables.tree[2], *(tables.tree_across[1] / tables.tree_across[2],) * 2)
        limits = zip(row, shares, TREE_LL128[kind], strict=True)
        found["tree", "LL128", kind] = tuple(1e9 * min(limit * share, most) for limit, share, most in limits)
    return found
