"""NCCL, version by version: the tuning model by which it chooses, and the times that it takes.

NCCL chooses algorithm and protocol by the tables of ``nccl_tables.py``. The times that it takes follow the same tables,
except for the few figures of ``nccl_fitted.yaml``, where measured all-reduces contradict them. That is a calibration
file written by ``clustersim calibrate``. The factors and limits by which NCCL corrects only its choice are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from clustersim.simulator.hardware.links import PAYLOAD, STACK
from clustersim.simulator.network.library import nccl_tables
from clustersim.simulator.network.library.nccl_tables import (
    AMPERE_LIMIT,
    BUFFER_BYTES,
    CHUNK_BYTES,
    CHUNKS_FOR_DEPTH,
    COPIES,
    LINES,
    NET_CHUNK_BYTES,
    NET_CHUNKS_FOR_DEPTH,
    NOT_COPIED,
    PROTOCOLS,
    RING_LL128,
    ROUND_BYTES,
    SLICES,
    TREE,
    TREE_LL128,
    VERSIONS,
    TuningTables,
)
from clustersim.simulator.network.library.transport_parameters import overridden, section
from clustersim.simulator.network.transport import NET, NVLINK, PCI, Transport
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.validation import validated
from clustersim.simulator.reading.yaml_and_json import read

FITTED = Path(__file__).with_name("nccl_fitted.yaml")
"""The calibration file that overrides the tables."""

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
"""The last three are grouped sends and receives, by Simple, with newer releases up to `LL_MESSAGE` by LL. SHARP and
NVLSTree come by `nccl_tables.with_networks`. CollNet by chains and PAT are not modelled.
"""

NVLS_CEILINGS = {
    (name, "Simple", kind): share * 18 * each
    for name in ("nvls", nccl_tables.NVLS_TREE)
    for kind, share, each in (("nvlink4", 0.85, 20.6e9), ("nvlink5", 0.74, 40.1e9))
}
"""nvlsEfficiency of Hopper and Blackwell, "2.30", times the bandwidth of their 18 links; NVLSTree has the same.

Versions with these GPUs have NVLS. By the first it chooses; the times that it takes have a share of the links, a rate
of Blackwell's, whose channels carry less than its links, and a latency for each round of chunks, which are fitted.
"""

NVLS_LATENCY = 25e-6
"""s, hwLatencies of NVLS over NVLink, "2.30"; its base latency is 0."""

NET_SHARE = 12.0 / 12.5
"""NET_BW: 12 GB/s of a port of 100 Gb/s (topo.h)."""

LL_MESSAGE = 16384.0
"""Bytes of a message that goes by LL with newer releases: NCCL_P2P_LL_THRESHOLD (src/enqueue.cc, "2.30")."""

EFA = {"efa_100": 75e-6, "efa_100_v2": 75e-6, "efa_200": 35e-6, "efa_400": 35e-6}
"""s, the latency that Amazon's plugin reports to NCCL, which adds it to a hop, by Simple twice because of the flush
(aws/aws-ofi-nccl, src/platform-aws.cpp; ncclTopoTuneModel). InfiniBand reports none."""

EFA_LATENCY = {"efa_100": 0.0, "efa_100_v2": 20e-6, "efa_200": 18e-6, "efa_400": 18e-6}
"""s, what a message takes: the net_lat of the plugin's own tuner for P5 and P5en (src/tuner/nccl_ofi_model.cpp), whose
later links are taken to be as those of P5en; 0: of the first, which has none, the latency of its links."""

EFA_TRIPS = {"efa_100": 3, "efa_100_v2": 1, "efa_200": 1, "efa_400": 1}
"""The first goes by libfabric's messages: the receiver reads what is larger than a packet, so a request, the read and
its answer cross the network (ofiwg/libfabric, prov/efa/src/efa_hmem.c). The others write at once and need no flush
(src/platform-aws.cpp, PROTOCOL::RDMA and NCCL_NET_FORCE_FLUSH)."""

NET_OVERHEAD = {
    (vendor, protocol): us * 1e-6 * (3 if protocol == "Simple" else 1)
    for vendor, us in {"intel": 1, "amd": 2}.items()
    for protocol in PROTOCOLS
}
"""Network post overhead, by Simple three times (getNetOverhead, ncclTopoTuneModel, "2.30"). Chunks wait for it where
libfabric posts them; posts to InfiniBand go on beside them."""

EFA_CHUNKS = {("tree", "Simple"): 2.0, (nccl_tables.NVLS_TREE, "Simple"): 4.0}
"""Factors on chunks: the plugin sets NCCL_BUFFSIZE to 8 MiB and NCCL_NVLSTREE_MAX_CHUNKSIZE to 512 KiB."""

UNORDERED = frozenset({"efa_100"})
"""NICs that do not write lines of 128 B in order, so that the plugin asks for Simple (the same, NCCL_PROTO)."""

EARLY_EFA = {"efa_100": 0.61}
"""With releases before 2.19, of a port of Amazon's first Elastic Fabric Adapter: rings of three and four p4d.24xlarge
pass 1 GiB at 31.8 and 29.6 of 50 GB/s (nccl-tests, July 2022: NVIDIA/nccl, issue 527).
"""

NVLINKS = {"nvlink4": 20.6 / 25, "nvlink5": 40.1 / 50}
"""Shares of the data sheet's bandwidth by the later generations: SM90_NVLINK_BW, SM100_NVLINK_BW (topo.h)."""

XGMI = {"infinity_fabric": 36 / 50, "infinity_fabric4": 48 / 64, "infinity_fabric4_38g": 48 / 64}
"""MI200_XGMI_WIDTH and GFX94X_XGMI_WIDTH, GB/s of a link of 50 and of 64 (ROCm/rccl, src/graph/topo.h); the MI350's, of
the same generation and faster, are taken to have the share of the MI300's."""

HOPPER = "nvlink4", "nvlink5"
"""NVLinks of GPUs that versions before 2.18 do not know."""

WIRED = frozenset({NVLINK, PCI, NET})
"""NCCL adds the latency that a network reports, and InfiniBand reports none (props->latency = 0, net_ib.cc)."""

PCIE: Mapping[str, float] = {"pcie3": 12e9, "pcie4": 24e9, "pcie5": 48e9, "pcie6": 96e9}
"""PCI_BW: 12 GB/s for 16 lanes of generation 3, in proportion to the lanes' rate after that (topo.cc, kvDictPciGen)."""

PCIE_BY_HOST = {
    f"{kind} by {way}": share * rate
    for kind, rate in PCIE.items()
    for way, share in (("peers", 5 / 6), ("host", 15.3 / 24))
}
"""bytes/s of a GPU's link on routes to others through a host. Peers' memory: packets of 64 B take a
fifth more (INTEL_P2P_OVERHEAD, topo.h). The host's memory: 15.3 GB/s each way where 4090s on PCIe 4 copy to each other
through it both ways at once (p2pBandwidthLatencyTest --sm_copy, NVIDIA/nccl issue 814)."""

BLOCKS = 2
"""Thread blocks for each ring of the search: NCCL doubles the channels (connect.cc, ncclTopoPostset)."""


CHANNEL_BYTES = {
    ("ring", "LL"): (0, 512 * 8),
    ("tree", "LL"): (512 * 8, 0),
    **{(name, "LL128"): (640 * 8, 0) for name in ("ring", "tree")},
    **{(name, "Simple"): (512 * 64, 0) for name in ("ring", "tree")},
}
"""Bytes that open one more channel: threads of a block (NCCL_LL_MAX_NTHREADS, NCCL_LL128_MAX_NTHREADS,
NCCL_SIMPLE_MAX_NTHREADS) times bytes of the vector for each thread (NCCL_LL_THREAD_THRESHOLD, for each rank of a ring;
NCCL_LL128_..., NCCL_SIMPLE_...): enqueue.cc, getAlgoInfo; devcomm.h and enqueue.h, v2.10.3.
"""


NVLS_VERSION = "2.30"
"""The version of the tables whose releases know NVLS and NVLSTree (since 2.18)."""

NEWER_LINKS = frozenset({"nvlink3", *PCIE})
"""Kinds of link that earlier tables know, too: their measured latencies are of the releases of `NVLS_VERSION`, whose
own latencies by LL and LL128 are half as long again."""

SINCE = {"2.5": (2, 0), "2.10": (2, 10), "2.30": (2, 19)}
"""The first release that each version of the tables stands for: hwLatencies of 2.19 are those of "2.30"."""


ONE_HEAP = (2, 13)
"""The first release with one heap of work records for all channels (src/init.cc, v2.13.4, workFifoHeap). Before, the
host took a record of each channel from a queue in its memory in which the GPU marks records as free (src/enqueue.cc,
getNextOp, v2.12.12). The time for each further channel (`Transport.issue_channel`) is of such releases."""


def tables_of(release: str) -> str:
    """Return the version of the tables for a *release* of NCCL.

    >>> tables_of("2.14.3"), tables_of("2.27")
    ('2.10', '2.30')
    """
    return max((begin, version) for version, begin in SINCE.items() if begin <= _number(release))[1]


def as_release(library: Transport, release: str | None) -> Transport:
    """Return *library*, NCCL, as *release*, by default the first one of its tables, launches collectives.

    >>> queue = Transport(name="nccl", version="2.10", issue_channel=1e-6)
    >>> as_release(queue, "2.12.12").issue_channel, as_release(queue, "2.13.4").issue_channel
    (1e-06, 0.0)
    """
    number = SINCE[library.version] if release is None else _number(release)
    return replace(library, issue_channel=0.0) if number >= ONE_HEAP else library


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def version_for(links: Iterable[str]) -> str:
    """Return the version of the tables for a cluster with *links* of these kinds: the first that knows its GPUs."""
    return "2.30" if set(links) & set(HOPPER) else "2.10"


@cache
def nccl(version: str = "2.10") -> Transport:
    """NCCL of *version*. Raises `SimulatorError` for a version without tables."""
    model = tuning_model(version)
    bare = replace(
        model, tuning_model=model, large_message_factor={}, corrections={}, ring_ceilings={}, head_ceilings={}
    )
    ceilings = {key: limit for key, limit in bare.ceilings.items() if key not in NVLS_CEILINGS}
    library = replace(
        bare,
        ceilings=ceilings,
        shares={**bare.shares, (nccl_tables.SHARP, "Simple", True): nccl_tables.SHARP_STREAMING},
        net_shares={**bare.net_shares, (nccl_tables.NVLS_SHARP, "Simple"): nccl_tables.SHARP_STREAMING},
        overlapped_latency=True,
        chains_by_rank=False,
        fills=True,
        blind=False,
        copies={key: n for key, n in COPIES.items() if key not in NOT_COPIED or version != NVLS_VERSION},
        limits=AMPERE_LIMIT,
        attainable={**PCIE, **PCIE_BY_HOST},
        slices=SLICES,
        round_bytes=ROUND_BYTES,
        lines=LINES,
        reporting=EFA_LATENCY,
        trips=EFA_TRIPS,
        larger_chunks=EFA_CHUNKS,
        net_overhead=NET_OVERHEAD,
    )
    return nccl_tables.with_rounds(overridden(library, validated(read(FITTED), section(), ("transport",))))


def tuning_model(version: str) -> Transport:
    """The model by which NCCL of *version* chooses. Raises `SimulatorError` for a version without tables."""
    if version not in VERSIONS:
        raise SimulatorError(f'NCCL has no tables for version "{version}"; there are: {", ".join(VERSIONS)}')
    tables, early = VERSIONS[version], {} if version == "2.30" else EARLY_EFA
    return Transport(
        "nccl",
        version,
        ALGORITHMS,
        protocols=PROTOCOLS,
        messages=("LL", "Simple") if version == NVLS_VERSION else ("Simple",),
        message_bytes={"LL": LL_MESSAGE},
        unordered_nics=UNORDERED,
        reporting=EFA,
        newer_links=frozenset() if version == NVLS_VERSION else NEWER_LINKS,
        base_latency=_base(tables),
        hop_latency=_hop(version, tables),
        wired=WIRED,
        intra_node_penalty={"LL": tables.intra_node_penalty},
        large_message_factor={("ring", "Simple"): tables.large_message_factor},
        large_message_bytes=tables.large_message_bytes,
        efficiency={NVLINK: tables.nvlink, **NVLINKS, NET: NET_SHARE, **early, **XGMI},
        attainable=PCIE,
        limits=tables.limits,
        shares={**_shares(tables), **nccl_tables.switch_shares(version)},
        net_shares={(name, "Simple"): 1.0 for name in (nccl_tables.NVLS_SHARP, nccl_tables.NVLS_TREE)},
        head_ceilings=nccl_tables.head_ceilings(),
        single_gpu_shares={} if tables.single_gpu_share is None else {("ring", "LL128"): tables.single_gpu_share},
        ceilings={**tables.ceilings, **NVLS_CEILINGS},
        ring_ceilings=_ring_ceilings(tables) if tables.channels else {},
        corrections=tables.corrections,
        nvlink_only=frozenset({"LL128"}),
        far_nics=frozenset(HOPPER),
        chains_by_rank=True,
        gather_shares={("ring", "LL"): tables.gather_share},
        switch_only={name: tuple(NVLINKS) for name in ("nvls", nccl_tables.NVLS_SHARP, nccl_tables.NVLS_TREE)},
        across_only=frozenset(nccl_tables.SWITCH_ALGORITHMS),
        sharp_only=frozenset({nccl_tables.SHARP, nccl_tables.NVLS_SHARP}),
        fills=False,
        more_channels=nccl_tables.NVLS_CHANNELS,
        chunk_bytes={**CHUNK_BYTES, **nccl_tables.SWITCH_CHUNK_BYTES, **tables.chunk_bytes},
        chunks_for_depth={**CHUNKS_FOR_DEPTH, **nccl_tables.SWITCH_CHUNKS_FOR_DEPTH},
        net_chunk_bytes=NET_CHUNK_BYTES,
        net_chunks_for_depth=NET_CHUNKS_FOR_DEPTH,
        blocks=BLOCKS,
        channel_bytes=CHANNEL_BYTES,
        buffer_bytes=BUFFER_BYTES,
        blind=True,
        tcp_share=PAYLOAD,
        tcp_latency=2 * STACK,
        tcp_threads=BLOCKS,
        reorders=True,
        tagged=False,
    )


def _base(tables: TuningTables) -> dict[tuple[str, str], float]:
    rows = {(name, p): us * 1e-6 for name, row in tables.base.items() for p, us in zip(PROTOCOLS, row, strict=True)}
    # those of CollNet and NVLSTree are 0, "2.30"
    return {
        **rows,
        ("nvls", "Simple"): NVLS_LATENCY,
        **{(name, "Simple"): 0.0 for name in nccl_tables.SWITCH_ALGORITHMS},
    }


def _hop(version: str, tables: TuningTables) -> dict[tuple[str, str, str], float]:
    rows = {
        (hop, name, p): us * 1e-6
        for hop, rows in tables.hop.items()
        for name, row in rows.items()
        for p, us in zip(PROTOCOLS, row, strict=True)
    }
    return {**rows, (NVLINK, "nvls", "Simple"): 0.0, **nccl_tables.switch_hop_latency(version)}


def _shares(tables: TuningTables) -> dict[tuple[str, str, bool], float]:
    rows = {
        ("ring", False): tables.ring,
        ("ring", True): tables.ring,
        ("tree", False): tables.tree,
        ("tree", True): tables.tree_across,
    }
    return {(name, p, across): s for (name, across), row in rows.items() for p, s in zip(PROTOCOLS, row, strict=True)}


def _ring_ceilings(tables: TuningTables) -> dict[tuple[str, str, str], tuple[float, ...]]:
    found = {("ring", "LL128", kind): tuple(1e9 * limit for limit in row) for kind, row in RING_LL128.items()}
    for kind, row in TREE.items():
        found["tree", "Simple", kind] = tuple(1e9 * limit for limit in row)
        # the limit of LL128 is that of Simple times the ratio of their shares
        shares = (tables.tree[1] / tables.tree[2], *(tables.tree_across[1] / tables.tree_across[2],) * 2)
        limits = zip(row, shares, TREE_LL128[kind], strict=True)
        found["tree", "LL128", kind] = tuple(1e9 * min(limit * share, most) for limit, share, most in limits)
    return found
