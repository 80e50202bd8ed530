"""A shaper is a token bucket that lets a veth interface send no faster than a link of the cluster.

The frames of a testbed are Ethernet's of 1,500 B. tc counts neither checksum nor preamble nor gap of a frame, 24 of the
1,538 B for which it holds a wire, so its rate is that much lower: then full frames take as long as on the wire. The
kernel hands down several segments of TCP at once and shapes them as one packet: few enough that a bucket which holds
one adds next to nothing to a message, and enough that two cores can carry a network.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from simulator.cluster import Link

FRAME = 1514
"""Bytes of a full frame as tc counts it."""

COUNTED = FRAME / 1538
"""Share of a frame that tc counts: all but checksum (4 B), preamble (8 B) and gap (12 B; IEEE 802.3)."""

SEGMENTS = 3
"""TCP segments that go together. On two cores one each carries 430 of 500 Mb/s, three all of it (measured)."""

LATE = 75e-6
"""s by which the kernel's timer may be late and the link still be full: what would have left then is in the bucket."""

BUFFER = 2**26
"""Bytes that may queue before a link; more than the windows of all connections together, so that nothing is lost."""

WINDOW = 6 * SEGMENTS * 1448
"""Bytes that a connection may have in the network: more than is under way at 500 Mb/s in 0.2 ms, yet a queue of few ms.
All have the same, so that those which meet at a link share it evenly."""

ROUTE = f"window {WINDOW} initcwnd {WINDOW // 1448}"
"""Of the route to all others (ip-route(8)): the window to offer, and to begin with."""

IPV4_ONLY = (("net.ipv6.conf.all.disable_ipv6", "1"),)
"""Of every namespace: IPv6 would look for neighbours."""

SETTINGS = (
    *IPV4_ONLY,
    ("net.ipv4.tcp_congestion_control", "reno"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
)
"""Of the devices' namespaces. Nothing is lost, so every congestion control grows to the window; Reno is there in every
kernel and never slows down to probe. A window that stays open after a pause spares a slow start in the midst of a
step."""


def shape(interface: str, link: Link, *, delays: bool) -> Iterator[str]:
    """The lines of tc that make *interface* send as *link* does; its latency too, where the kernel *delays* (netem)."""
    rate = link.bandwidth * COUNTED
    burst = round(SEGMENTS * FRAME + LATE * rate)
    bucket = f"tbf rate {round(8 * rate)}bit burst {burst} limit {BUFFER}"
    if delays and link.latency:
        # the bucket as netem's child, as tc-netem(8) has it; the limit is of packets
        yield f"qdisc add dev {interface} root handle 1: netem delay {link.latency * 1e6:.3f}us limit {BUFFER // FRAME}"
        yield f"qdisc add dev {interface} parent 1:1 handle 10: {bucket}"
    else:
        yield f"qdisc add dev {interface} root {bucket}"


def delays(namespace: str) -> bool:
    """Whether the kernel can delay frames: whether it has the queueing discipline netem."""
    trial = ["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1us"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)
    return True
