"""Gloo sends over TCP from host memory: every message passes the operating system twice, and one thread does it all."""

from __future__ import annotations

from simulator.network.transport.transport import NET, NVLINK, PCI, Transport

STACK = 30e-6
"""s, one passage of the operating system's network stack, Gloo's thread woken and the caller after it; a message passes
it on either side. Measured on a testbed: 8 B take 40 to 60 us, and a ring of four 0.36 ms in its six rounds. (The stack
alone takes 15 us: Rumble et al., "It's Time for Low Latency", HotOS 2011, table 1.)"""

PAYLOAD = 1448 / 1538
"""Share of an Ethernet frame of 1,500 B that is payload under TCP: 52 B of IP and TCP headers with timestamps (RFC 791,
9293, 7323) inside; 38 B of Ethernet header, checksum, preamble and gap (IEEE 802.3) outside."""

ONE_CORE = 42e9 / 8
"""bytes/s that TCP carries on one core: Cai et al., "Understanding Host Network Stack Overheads", SIGCOMM 2021. First
estimate for Gloo, whose device has one thread."""

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
"""facebookincubator/gloo: allreduce.cc (a ring unless told otherwise), allgather.cc, broadcast.cc, reduce.cc,
gather.cc, scatter.cc, alltoall.cc; the bytes that leave each rank agree with all of these, as they do with torch 2.13's
reduce-scatter by all-reduce (counted on a testbed)."""


def gloo() -> Transport:
    """Gloo over TCP, ranks in their own order, receives matched by tag."""
    return Transport(
        "gloo",
        algorithms=ALGORITHMS,
        protocols=("tcp",),
        hop_latency={(hop, "ring", "tcp"): 2 * STACK for hop in (NVLINK, PCI, NET)},
        efficiency={NET: PAYLOAD},
        ceilings={("any", "tcp", "any"): ONE_CORE},
    )
