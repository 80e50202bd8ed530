"""NCCL's buffers, and the chunks in which it passes vectors through them, with the tags of NVIDIA/nccl."""

from __future__ import annotations

from collections.abc import Mapping

BUFFER_BYTES = 4 * 2**20 + 8 * 512 * 8 * 16 + 8 * 640 * 120 * 8
"""Bytes for each channel of a ring. Simple: NCCL_BUFFSIZE, 4 MiB by default (NCCL user guide). LL: NCCL_STEPS x
NCCL_LL_MAX_NTHREADS x NCCL_LL_LINES_PER_THREAD lines of 16 B. LL128: NCCL_STEPS x NCCL_LL128_MAX_NTHREADS x
NCCL_LL128_ELEMS_PER_THREAD elements of 8 B (src/include/devcomm.h, v2.10.3).
"""

CHUNK_BYTES: Mapping[tuple[str, str], tuple[float, ...]] = {
    **{(name, "LL"): (8.0,) for name in ("ring", "tree")},
    **{(name, "LL128"): (120.0,) for name in ("ring", "tree")},
    ("ring", "Simple"): (2.0**19,),
    ("direct", "Simple"): (2.0**19,),
    ("tree", "Simple"): (2.0**19, 2.0**17, 2.0**16, 2.0**15),
    ("nvls", "Simple"): (2.0**21, 2.0**20, 2.0**19, 2.0**18),
}
"""What a channel passes on at once. LL and LL128 pass on every line when it comes: 8 B of data, 15/16 of 128 B
(src/collectives/device/prims_ll.h, prims_ll128.h). Simple passes on a slot of its buffer, 4 MiB over NCCL_STEPS
(BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS are 1: src/include/collectives.h), of a tree what computeColl halves it to
(src/enqueue.cc, v2.10.3). NVLS: NCCL_NVLS_CHUNKSIZE (src/transport/nvls.cc, v2.18) and what computeColl halves it to
(src/enqueue.cc, v2.18.5), 128 to 16 KiB, for all of its 16 channels together."""

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
    ("tree", "Simple"): (8, 4, 1),
    ("nvls", "Simple"): (32, 4, 1),
}
"""computeColl, as above. Of NVLS it has 64, 8 and 2 chunks of every GPU, whose depth is 2 here."""

COPIES = {("nvls", "Simple"): 1, ("direct", "Simple"): 1}
"""NVLS: scatter, reduction in the switch and gather are three stages of a chunk, run by warps of their own (src/device/
all_reduce.h, RunWorkColl of NVLS, "2.30"), one more than the two hops. Grouped sends and receives: the receiver copies
chunks out of its buffer (src/collectives/device/sendrecv.h, v2.14.3)."""

ROUND_BYTES = {("ring", "Simple"): 2.0**21}
"""ALLREDUCE_CHUNKSTEPS, NCCL_STEPS / 2, of the slots of a channel's buffer (src/include/collectives.h, v2.10.3): over
tens of ms of latency chunks travel longer than it takes to send them."""

SLICES = {"ring": 2}
"""NCCL cuts a ring's chunk in two: ALLREDUCE_CHUNKSTEPS / ALLREDUCE_SLICESTEPS, NCCL_STEPS / 2 over NCCL_STEPS / 4
(src/include/collectives.h, v2.10.3)."""
