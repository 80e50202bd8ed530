"""Links by number: a table of the few distinct ones, and for each link its place in the table; and TCP, the protocol of
some: the share of frames that is payload, the limits of one connection, the cost of the host's network stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import overload

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.hardware.hashing import Indices, Numbering, Numbers, counted
from clustersim.simulator.reading.dataclass import dataclass

Floats = NDArray[np.float64]

DRAM, NVME = "dram", "nvme"
"""Kinds of links. A link from a host to itself is its memory: all that is read or written there shares it. The links
of the vertex of a node's NVMe drives are these: one direction reads, the other writes."""

STORES = (DRAM, NVME)

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


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: *kind* (nvlink3, pcie4, ib_hdr ...), *bandwidth* in bytes/s, *latency* in s.

    *protocol*: ``tcp`` where the operating system's network stack carries the messages. *stream*: bytes/s of one TCP
    connection at most.
    """

    kind: str
    bandwidth: float
    latency: float
    protocol: str = ""
    stream: float = inf


@dataclass(frozen=True, eq=False)
class Links(Sequence[Link]):
    """The link of number i is ``distinct[which[i]]``. No two of *distinct* are equal.

    >>> links = Links((Link("nvlink3", 25e9, 1e-6), Link("pcie4", 31.5e9, 2e-6)), np.array([0, 0, 1]))
    >>> len(links), links[2].kind, links.bandwidths.tolist()
    (3, 'pcie4', [25000000000.0, 25000000000.0, 31500000000.0])
    """

    distinct: tuple[Link, ...]
    which: Numbers

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, number: int) -> Link: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Link]: ...

    def __getitem__(self, number: int | slice) -> Link | Sequence[Link]:
        if isinstance(number, slice):
            return tuple(self.distinct[place] for place in self.which[number].tolist())
        return self.distinct[int(self.which[number])]

    def __iter__(self) -> Iterator[Link]:
        return map(self.distinct.__getitem__, self.which.tolist())

    @cached_property
    def bandwidths(self) -> Floats:
        """The bandwidth of each link, bytes/s."""
        return self.each(lambda link: link.bandwidth)

    def each(self, value: Callable[[Link], float]) -> Floats:
        """Return the *value* of each link."""
        return np.array([value(link) for link in self.distinct], np.float64)[self.which]

    def some(self, numbers: Indices, value: Callable[[Link], float]) -> Floats:
        """Return the *value* of the links *numbers*."""
        return np.array([value(link) for link in self.distinct], np.float64)[self.which[numbers]]

    @cached_property
    def counts(self) -> Mapping[Link, int]:
        """The number of links for each distinct `Link`, in order of first occurrence."""
        return dict(zip(*counted(self.distinct, self.which), strict=True))

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """The number of links of each kind, in order of first occurrence."""
        kinds: Counter[str] = Counter()
        for link, count in self.counts.items():
            kinds[link.kind] += count
        return kinds

    def mapped(self, change: Callable[[Link], Link]) -> Links:
        """Return the links with every link replaced by *change* of it."""
        table: Numbering[Link] = Numbering()
        places = np.array([table.number(change(link)) for link in self.distinct], np.int64)
        return Links(table.values, places[self.which])

    def replaced(self, changes: Mapping[int, Link]) -> Links:
        """Return the links with some replaced, by number."""
        table, which = Numbering(self.distinct), self.which.copy()
        for number, link in changes.items():
            which[number] = table.number(link)
        return Links(table.values, which)


def is_tcp(links: Iterable[Link]) -> bool:
    """Whether one of *links* carries TCP."""
    return any(link.protocol == TCP for link in links)


def connection_limit(links: Links, paths: Iterable[Iterable[int]], latencies: Iterable[float]) -> float:
    """Return the most (bytes/s) that one connection carries on the worst of *paths*; infinite without TCP.

    *paths*: numbers of *links*. *latencies*: of the paths, s. The receiver's window passes once in a round trip.
    """
    if not is_tcp(links.distinct):
        return inf
    most = inf
    for path, latency in zip(paths, latencies, strict=True):
        passed = [links[number] for number in path]
        if is_tcp(passed):
            window = WINDOW / (2 * latency) if latency else inf
            most = min(most, window, *(link.stream for link in passed))
    return most
