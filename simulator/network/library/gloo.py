"""Gloo sends from host memory over TCP. Every message passes the operating system twice, in one thread."""

from __future__ import annotations

from clustersim.simulator.hardware.links import ONE_CORE, PAYLOAD
from clustersim.simulator.network.transport import NET, NVLINK, PCI, Transport

STACK = 30e-6
"""s, one passage of the operating system's network stack, with the wake-up of Gloo's thread and then of the caller. A
message passes it once at either end. Measured on a testbed: 8 B take 40 to 60 us, and a ring of four 0.36 ms in its six
rounds. (The stack alone takes 15 us: Rumble et al., "It's Time for Low Latency", HotOS 2011, table 1.)
"""

SEGMENTS = 2
"""Gloo's rings have two segments under way. A segment is sent when the receiver has told that it is ready (allreduce.cc
and reduce.cc: two temporary buffers; transport/tcp/pair.cc: sendNotifyRecvReady)."""

SEGMENT_BYTES = 2.0**20
"""kMaxSegmentSize of allreduce.cc."""

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring",),
    "all_gather": ("ring_by_halves",),
    "reduce_scatter": ("all_reduced",),
    "broadcast": ("binomial_at_once",),
    "reduce": ("ring_gathered",),
    "gather": ("direct",),
    "scatter": ("direct",),
    "all_to_all": ("each_to_each",),
}
"""facebookincubator/gloo: allreduce.cc (a ring by default), allgather.cc, broadcast.cc, reduce.cc, gather.cc,
scatter.cc, alltoall.cc. The bytes that leave each rank agree with all of these, and with torch 2.13's reduce-scatter by
all-reduce (counted on a testbed).
"""


def gloo() -> Transport:
    """Gloo over TCP. Ranks keep their own order; receives are matched by tag.

    Gloo has one thread for each device, so one core carries all of its bytes.
    """
    return Transport(
        "gloo",
        algorithms=ALGORITHMS,
        protocols=("tcp",),
        hop_latency={(hop, "ring", "tcp"): 2 * STACK for hop in (NVLINK, PCI, NET)},
        efficiency={NET: PAYLOAD},
        ceilings={("any", "tcp", "any"): ONE_CORE},
        segments=SEGMENTS,
        round_bytes={(name, "tcp"): SEGMENTS * SEGMENT_BYTES for name in ("ring", "ring_gathered", "all_reduced")},
    )
