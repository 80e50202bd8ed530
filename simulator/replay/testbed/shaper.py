"""A shaper is a token bucket that limits a veth interface to the rate of a link of the cluster.

A testbed has Ethernet frames of 1,500 B. tc does not count checksum, preamble and gap of a frame, 24 of the 1,538 B on
a wire. So its rate is lower by that share, and full frames take as long as on a wire. The kernel passes several
segments of TCP at once and shapes them as one packet. They are few enough that a bucket of their size hardly shortens a
message, and many enough that two cores can carry a network.
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
"""TCP segments in one packet. On two cores one segment carries 430 of 500 Mb/s, three carry all of it (measured)."""

LATE = 75e-6
"""s by which the kernel's timer may be late while the link stays full: the bucket holds the bytes of that time."""

BUFFER = 2**26
"""Bytes that may queue before a link. More than the windows of all connections together, so no frame is lost."""

WINDOW = 6 * SEGMENTS * 1448
"""Bytes that a connection may have in the network: more than 500 Mb/s carry in 0.2 ms, yet a queue of few ms. All
connections have the same window, so those that share a link share it evenly.
"""

ROUTE = f"window {WINDOW} initcwnd {WINDOW // 1448}"
"""Options of the routes (ip-route(8)): the window to offer, and the initial window."""

IPV4_ONLY = (("net.ipv6.conf.all.disable_ipv6", "1"),)
"""Of every namespace: IPv6 would look for neighbours."""

SETTINGS = (
    *IPV4_ONLY,
    ("net.ipv4.tcp_congestion_control", "reno"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
)
"""Kernel parameters of the devices' namespaces. No frame is lost, so every congestion control grows to the window. Reno
exists in every kernel and never slows down to probe. A window that stays open after a pause avoids a slow start within
a step.
"""


def shape(interface: str, link: Link, *, delays: bool) -> Iterator[str]:
    """Yield the lines of tc that limit *interface* to *link*.

    They include the link's latency if the kernel *delays* frames (netem).
    """
    rate = link.bandwidth * COUNTED
    burst = round(SEGMENTS * FRAME + LATE * rate)
    bucket = f"tbf rate {round(8 * rate)}bit burst {burst} limit {BUFFER}"
    if delays and link.latency:
        # the bucket is netem's child, as in tc-netem(8); the limit counts packets
        yield f"qdisc add dev {interface} root handle 1: netem delay {link.latency * 1e6:.3f}us limit {BUFFER // FRAME}"
        yield f"qdisc add dev {interface} parent 1:1 handle 10: {bucket}"
    else:
        yield f"qdisc add dev {interface} root {bucket}"


def delays(namespace: str) -> bool:
    """Whether the kernel can delay frames, that is, has the queueing discipline netem."""
    trial = ["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1us"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)
    return True
