"""NCCL's algorithms between servers that not every network has: SHARP, NVLS with SHARP, and NVLSTree.

The tables have the figures of NVIDIA/nccl, src/graph/tuning.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.network.transport.group_properties import NET, NVLINK, PCI
from simulator.network.transport.transport import Transport

SHARP, NVLS_SHARP, NVLS_TREE = "sharp", "nvls_sharp", "nvls_tree"

HOPS: Mapping[str, Mapping[tuple[str, str], float]] = {
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

STREAMING = 0.95
"""Of the network's bandwidth: an all-reduce on HDR by streaming aggregation (Graham et al., ISC 2020, abstract)."""

NAMES = SHARP, NVLS_SHARP, NVLS_TREE

NVLS_SHARE = 5 / 6
"""Of the bandwidth of NVLS and NVLSTree, "2.30"."""

COLLNET_SHARES: Mapping[str, float] = {"2.5": 0.9, "2.10": 0.9, "2.30": 0.85}
"""Shares by which NCCL judges CollNet: of all GPUs before Hopper, and of Hopper ("2.30")."""

CHUNK_BYTES = {
    (SHARP, "Simple"): (2.0**19, 2.0**17, 2.0**16, 2.0**15),
    (NVLS_SHARP, "Simple"): (2.0**20, 2.0**19, 2.0**18, 2.0**17),
    (NVLS_TREE, "Simple"): (2.0**20, 2.0**19, 2.0**18, 2.0**17),
}
"""SHARP: a slot of a channel's buffer and what computeColl halves it to (src/enqueue.cc, v2.10.3). NVLS: the chunks of
NVLS in one server, of the half of the channels that a head and a tree have."""

CHUNKS_FOR_DEPTH = {
    (SHARP, "Simple"): (64, 8, 1),
    (NVLS_SHARP, "Simple"): (32, 4, 1),
    (NVLS_TREE, "Simple"): (32, 4, 1),
}
"""computeColl, as above."""


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


def hop_latency(version: str) -> dict[tuple[str, str, str], float]:
    """Return the latency of a message by link class, algorithm and protocol, s."""
    return {(hop, name, "Simple"): us * 1e-6 for (hop, name), us in HOPS[version].items()}


def shares(version: str) -> dict[tuple[str, str, bool], float]:
    """Return the shares of bandwidth by which NCCL of *version* judges the algorithms."""
    judged = {SHARP: COLLNET_SHARES[version], NVLS_SHARP: NVLS_SHARE, NVLS_TREE: NVLS_SHARE}
    return {(name, "Simple", True): share for name, share in judged.items()}
