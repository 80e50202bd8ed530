"""TCP: the share of frames that is payload, the limits of one connection, and the cost of the host's network stack."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link

PAYLOAD = 1448 / 1538
"""Share of an Ethernet frame of 1,500 B that is payload under TCP. Inside are 52 B of IP and TCP headers with
timestamps (RFC 791, 9293, 7323); outside 38 B of Ethernet header, checksum, preamble and gap (IEEE 802.3).
"""

ONE_CORE = 42e9 / 8
"""bytes/s that TCP carries on one core: Cai et al., "Understanding Host Network Stack Overheads", SIGCOMM 2021."""

STACK = 15e-6
"""s, one passage of the operating system's network stack (Rumble et al., "It's Time for Low Latency", HotOS 2011,
table 1)."""

WINDOW = 6 * 2**20 / 2
"""bytes on their way in one connection at most: tcp_rmem's largest, 6 MiB, of which half is for the kernel's own data
(tcp_adv_win_scale 1; Linux Documentation/networking/ip-sysctl)."""

TCP = "tcp"
"""`Link.protocol` of links that carry TCP."""


def is_tcp(links: Iterable[Link]) -> bool:
    """Whether one of *links* carries TCP."""
    return any(link.protocol == TCP for link in links)


def connection_limit(cluster: Cluster, paths: Iterable[Iterable[int]], latencies: Iterable[float]) -> float:
    """Return the most (bytes/s) that one connection carries on the worst of *paths*; infinite without TCP.

    *latencies*: of the paths, s. The receiver's window passes once in a round trip.
    """
    if not is_tcp(cluster.links.distinct):
        return inf
    most = inf
    for path, latency in zip(paths, latencies, strict=True):
        links = [cluster.links[number] for number in path]
        if is_tcp(links):
            window = WINDOW / (2 * latency) if latency else inf
            most = min(most, window, *(link.stream for link in links))
    return most
