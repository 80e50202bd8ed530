"""NCCL's figures, version by version: its latencies, the share of the bandwidth that its protocols reach, its buffers
and chunks; and the algorithms that not every network has: SHARP, NVLS with SHARP, and NVLSTree.

Latencies and shares are from NVIDIA/nccl, src/graph/tuning.cc, topo.h and topo.cc at the tags v2.5.6-1 and v2.10.3-1
and at 5067397c (2026-06, here "2.30"). They have the order and the units of the source: us and GB/s, for LL, LL128 and
Simple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from clustersim.simulator.network.transport import NET, NVLINK, PCI, Transport
from clustersim.simulator.reading.dataclass import dataclass

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

TREE_CORRECTION: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("tree", "LL"): (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    ("tree", "LL128"): (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7) + (0.6,) * 6 + (0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    ("tree", "Simple"): (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
"""treeCorrectionFactor, for 64 B, 128 B ... 256 MiB."""

BUFFER_BYTES = 4 * 2**20 + 8 * 512 * 8 * 16 + 8 * 640 * 120 * 8
"""Bytes for each channel of a ring. Simple: NCCL_BUFFSIZE, 4 MiB by default (NCCL user guide). LL: NCCL_STEPS x
NCCL_LL_MAX_NTHREADS x NCCL_LL_LINES_PER_THREAD lines of 16 B. LL128: NCCL_STEPS x NCCL_LL128_MAX_NTHREADS x
NCCL_LL128_ELEMS_PER_THREAD elements of 8 B (src/include/devcomm.h, v2.10.3).
"""

LINES = {"LL": 8.0, "LL128": 120.0}
"""Bytes of data in a line, which comes with its flag: 8 B, and 15/16 of 128 B (src/collectives/device/prims_ll.h,
prims_ll128.h)."""

CHUNK_BYTES: Mapping[tuple[str, str], tuple[float, ...]] = {
    **{(name, protocol): (line,) for name in ("ring", "tree") for protocol, line in LINES.items()},
    ("ring", "Simple"): (2.0**19,),
    ("direct", "Simple"): (2.0**19,),
    ("tree", "Simple"): (2.0**19, 2.0**17, 2.0**16, 2.0**15),
    ("nvls", "Simple"): (2.0**21, 2.0**20, 2.0**19, 2.0**18),
}
"""What a channel passes on at once. LL and LL128 pass on every line when it comes. Simple passes on a slot of its
buffer, 4 MiB over NCCL_STEPS (BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS are 1: src/include/collectives.h), of a tree
what computeColl halves it to (src/enqueue.cc, v2.10.3). NVLS: NCCL_NVLS_CHUNKSIZE (src/transport/nvls.cc, v2.18) and
what computeColl halves it to (src/enqueue.cc, v2.18.5), 128 to 16 KiB, for all of its 16 channels together."""

NVLS_CHANNELS: Mapping[tuple[str, str, str], float] = {
    ("nvlink5", "nvls", "Simple"): 24 / 16,
    ("nvlink5", "nvls_tree", "Simple"): 32 / 16,
}
"""Factors on NVLS's chunks: Blackwell opens 24 channels in a domain, and 32 in a group of several
(NVLS_NCHANNELS_SM100_NVL, NVLS_NCHANNELS_SM100: nvls.cc, "2.30")."""

WHOLE_SLOTS: Mapping[tuple[str, str], tuple[float, ...]] = {("tree", "Simple"): (2.0**19,)}
"""What differs with 2.20 and newer: trees by Simple pass on whole slots (calcCollChunking)."""

LL128_DATA = 15 / 16
"""Of a line of LL128: all but its flag (NCCL_LL128_DATAELEMS over NCCL_LL128_LINEELEMS)."""

NET_CHUNK_BYTES: Mapping[tuple[str, str], tuple[float, ...]] = {
    **{(name, "LL"): (512 * 8 * 8.0,) for name in ("ring", "tree")},
    ("direct", "Simple"): (2.0**17,),
    ("ring", "LL128"): (640 * 120 * 8 * LL128_DATA,),
    ("tree", "LL128"): (640 * 120 * 8 * LL128_DATA, 2**17 * LL128_DATA, 2**15 * LL128_DATA),
}
"""Data in a slot of LL's and LL128's buffer (`BUFFER_BYTES` over NCCL_STEPS, without flags). The proxy, a thread of the
host that feeds the NIC, sends a slot when all of it is there (src/transport/net.cc, sendProxyProgress, v2.14.3). Of a
tree by LL128 it is what computeColl halves it to (src/enqueue.cc). Of sends across servers it is NCCL_P2P_NET_CHUNKSIZE
(src/init.cc)."""

NET_CHUNKS_FOR_DEPTH: Mapping[tuple[str, str], tuple[float, ...]] = {("tree", "LL128"): (64, 16)}
"""computeColl, for each of `GroupProperties.tree_steps`."""

CHUNKS_FOR_DEPTH: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("tree", "Simple"): (4, 2, 1 / 2),
    ("nvls", "Simple"): (32, 4, 1),
}
"""computeColl, as above. Of a tree it has 8, 4 and 1 chunks for each level, which is two hops here, up and down. Of
NVLS it has 64, 8 and 2 chunks of every GPU, whose depth is 2 here."""

COPIES = {("nvls", "Simple"): 1, ("direct", "Simple"): 1}
"""NVLS: scatter, reduction in the switch and gather are three stages of a chunk, run by warps of their own (src/device/
all_reduce.h, RunWorkColl of NVLS, "2.30"), one more than the two hops. Grouped sends and receives: the receiver copies
chunks out of its buffer (src/collectives/device/sendrecv.h, v2.14.3)."""

NOT_COPIED = {("direct", "Simple")}
"""What releases 2.27 and 2.29 do not show at the rate of the links: all-to-alls of 16 to 512 MiB on A100, H100 and B200
take bytes over rate and 20 to 30 us, where the first chunks of all channels would take 40 to 80 us more. Over NVLink
they are copied at `Transport.copy_rate` (aiconfigurator)."""

ROUND_BYTES = {("ring", "Simple"): 2.0**21}
"""ALLREDUCE_CHUNKSTEPS, NCCL_STEPS / 2, of the slots of a channel's buffer (src/include/collectives.h, v2.10.3): over
tens of ms of latency chunks travel longer than it takes to send them."""

SLICES = {"ring": 2}
"""NCCL cuts a ring's chunk in two: ALLREDUCE_CHUNKSTEPS / ALLREDUCE_SLICESTEPS, NCCL_STEPS / 2 over NCCL_STEPS / 4
(src/include/collectives.h, v2.10.3)."""

SHARP, NVLS_SHARP, NVLS_TREE = "sharp", "nvls_sharp", "nvls_tree"

SWITCH_HOPS: Mapping[str, Mapping[tuple[str, str], float]] = {
    "2.5": {(NVLINK, SHARP): 4.0, (PCI, SHARP): 5.5, (NET, SHARP): 10.7 / 2},
    "2.10": {(NVLINK, SHARP): 4.0, (PCI, SHARP): 5.5, (NET, SHARP): 10.7 / 2},
    "2.30": {
        (NVLINK, SHARP): 3.7,
        (PCI, SHARP): 3.7,
        (NET, SHARP): 31.0 / 2,
        (NVLINK, NVLS_SHARP): 25.0 / 2,
        (NET, NVLS_SHARP): 18.0 / 2,
        (NVLINK, NVLS_TREE): 25.0 / 2,
        (NET, NVLS_TREE): 20.9,
    },
}
"""us, hwLatencies of CollNet (with direct exchange), NVLS and NVLSTree. A way up and down through switches that add
costs one latency, and so does a way through NVSwitches; each half of it has one half."""

SHARP_STREAMING = 0.95
"""Of the network's bandwidth: an all-reduce on HDR by streaming aggregation (Graham et al., ISC 2020, abstract)."""

SWITCH_ALGORITHMS = SHARP, NVLS_SHARP, NVLS_TREE

NVLS_SHARE = 5 / 6
"""Of the bandwidth of NVLink by NVLS and NVLSTree, "2.30"; that of the network is not reduced (interBw)."""

NVLS_TREE_HEADS: Mapping[str, tuple[float, float]] = {"nvlink4": (57.7e9, 45.5e9), "nvlink5": (96.0e9, 80.0e9)}
"""perChMaxNVLSTreeBws, bytes/s, "2.30": bus bandwidth of NVLSTree for each head, in two servers, and in more."""

COLLNET_SHARES: Mapping[str, float] = {"2.5": 0.9, "2.10": 0.9, "2.30": 0.85}
"""Shares by which NCCL judges CollNet: of all GPUs before Hopper, and of Hopper ("2.30")."""

SWITCH_CHUNK_BYTES = {
    (SHARP, "Simple"): (2.0**19, 2.0**17, 2.0**16, 2.0**15),
    (NVLS_SHARP, "Simple"): (2.0**20, 2.0**19, 2.0**18, 2.0**17),
    (NVLS_TREE, "Simple"): (2.0**20, 2.0**21, 2.0**20, 2.0**19, 2.0**18),
}
"""SHARP: a slot of a channel's buffer and what computeColl halves it to (src/enqueue.cc, v2.10.3). NVLS: the chunks of
NVLS in one server, of the half of the channels that a head and a tree have; of NVLSTree also the larger ones for which
a plugin asks."""

SWITCH_CHUNKS_FOR_DEPTH = {
    (SHARP, "Simple"): (32, 4, 4),
    (NVLS_SHARP, "Simple"): (16, 2, 1 / 2),
    (NVLS_TREE, "Simple"): (8, 4, 1, 1 / 4),
}
"""computeColl, as above. Of SHARP it has 64, 8 and 8 chunks for each level of depth 2, which is four hops here. Of NVLS
it has 64, 8 and 2 chunks of every GPU, of NVLSTree 32, 16, 4 and 1 (v2.18.5), whose depth is 4 here."""


@dataclass(frozen=True)
class TuningTables:
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
    chunk_bytes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)


VERSIONS: dict[str, TuningTables] = {
    "2.5": TuningTables(
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
    "2.10": TuningTables(
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
    "2.30": TuningTables(
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
        chunk_bytes=WHOLE_SLOTS,
    ),
}
"""*nvlink*: what topo.h has for a link of NVLink 2 or 3 (21, 22, 20 GB/s) over the 25 GB/s of the data sheet.
*large_message_factor*: the factor on a ring's latency ("Plateau effect of ring") from *large_message_bytes* per rank.
Version 2.30 has 64 B per rank and channel, here with 16 channels, and 1.9 before Ampere. *channels*: whether it limits
each channel. *single_gpu_share*: the share of LL128 on servers with fewer than two ranks (ppn < 2), if it differs.
"""


def with_networks(library: Transport, *, sharp: bool, nvls_tree: bool) -> Transport:
    """Return *library*, a version of NCCL, which also chooses among SHARP's algorithms or NVLSTree."""
    added = [SHARP, NVLS_SHARP] * sharp + [NVLS_TREE] * nvls_tree
    algorithms = {**library.algorithms, "all_reduce": (*library.algorithms["all_reduce"], *added)}
    model = library.tuning_model
    return replace(
        library,
        algorithms=algorithms,
        sharp=sharp,
        tuning_model=model and with_networks(model, sharp=sharp, nvls_tree=nvls_tree),
    )


def with_rounds(library: Transport) -> Transport:
    """Return *library*, a version of NCCL, in which a round of chunks costs by NVLSTree what it costs by NVLS.

    In both the warps that scatter and gather pass a chunk of every head in each round (src/device/all_reduce.h,
    RunWorkColl of NVLS and of NVLS_TREE, "2.30").
    """
    rounds = library.round_latency
    return replace(library, round_latency={**rounds, (NVLS_TREE, "Simple"): rounds["nvls", "Simple"]})


def switch_hop_latency(version: str) -> dict[tuple[str, str, str], float]:
    """Return the latency of a message by link class, algorithm and protocol, s."""
    return {(hop, name, "Simple"): us * 1e-6 for (hop, name), us in SWITCH_HOPS[version].items()}


def head_ceilings() -> dict[tuple[str, str, str], tuple[float, ...]]:
    """Return the limits of the bus bandwidth of NVLSTree for each head."""
    return {(NVLS_TREE, "Simple", kind): limits for kind, limits in NVLS_TREE_HEADS.items()}


def switch_shares(version: str) -> dict[tuple[str, str, bool], float]:
    """Return the shares of bandwidth by which NCCL of *version* judges the algorithms."""
    judged = {SHARP: COLLNET_SHARES[version], NVLS_SHARP: NVLS_SHARE, NVLS_TREE: NVLS_SHARE}
    return {(name, "Simple", True): share for name, share in judged.items()}
