"""Gloo sends from host memory over TCP. Every message passes the operating system twice, in one thread."""

from __future__ import annotations

from simulator.network.transport.group_properties import NET, NVLINK, PCI
from simulator.network.transport.transport import Transport

STACK = 30e-6
"""s, one passage of the operating system's network stack, with the wake-up of Gloo's thread and then of the caller. A
message passes it once at either end. Measured on a testbed: 8 B take 40 to 60 us, and a ring of four 0.36 ms in its six
rounds. (The stack alone takes 15 us: Rumble et al., "It's Time for Low Latency", HotOS 2011, table 1.)
"""

PAYLOAD = 1448 / 1538
"""Share of an Ethernet frame of 1,500 B that is payload under TCP. Inside are 52 B of IP and TCP headers with
timestamps (RFC 791, 9293, 7323); outside 38 B of Ethernet header, checksum, preamble and gap (IEEE 802.3).
"""

ONE_CORE = 42e9 / 8
"""bytes/s that TCP carries on one core: Cai et al., "Understanding Host Network Stack Overheads", SIGCOMM 2021. A first
estimate for Gloo, which has one thread for each device.
"""

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
    """Gloo over TCP. Ranks keep their own order; receives are matched by tag."""
    return Transport(
        "gloo",
        algorithms=ALGORITHMS,
        protocols=("tcp",),
        hop_latency={(hop, "ring", "tcp"): 2 * STACK for hop in (NVLINK, PCI, NET)},
        efficiency={NET: PAYLOAD},
        ceilings={("any", "tcp", "any"): ONE_CORE},
    )
