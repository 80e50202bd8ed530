"""Routes of a group's transfers: the links that they load, how often, and the latency of each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice, pairwise
from math import lcm
from typing import NamedTuple
from zlib import crc32

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices, distinct
from clustersim.simulator.hardware.links import Floats, Link, is_tcp
from clustersim.simulator.hardware.regularity import Regularity
from clustersim.simulator.network.step import Step
from clustersim.simulator.network.transport import NET, NVLINK, PCI, GroupProperties, link_class
from clustersim.simulator.reading.dataclass import dataclass

FEW = 16
"""Transfers up to which each route is found on its own."""

NVLINK_BANDWIDTH = 25e9
"""bytes/s of one link of NVLink 2 to 4 in one direction (V100, A100 and H100 data sheets: 150, 300, 450 GB/s of 6, 12,
18 links)."""

MOST_CHANNELS = 32
"""MAXCHANNELS, NVIDIA/nccl src/include/devcomm.h, v2.10.3."""


Hop = tuple[float, str]
"""Of a transfer: the latency of the wire in s, and the link class."""


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """The load on the links by transfers that advance together.

    *links*: by number. *crossings*: for each link, the number of transfers that cross it. Of a transfer that is spread
    over several paths each one counts in part.

    By transfer: *hop_of*, the index of its hop in *hops*, which are distinct; *several*, the number of its paths;
    *lengths*, the links on its paths. *passed*: these links, one transfer after the other, as indices of *links*.
    """

    links: Indices
    crossings: Floats
    hops: tuple[Hop, ...]
    hop_of: Indices
    several: Indices
    lengths: Indices
    passed: Indices

    def slowest(self, seconds: Floats) -> Floats:
        """Return by transfer the most of *seconds* (by link) on its paths; 0 without links."""
        found = np.zeros(len(self.lengths))
        some = self.lengths > 0
        if len(self.passed):
            begins = np.cumsum(self.lengths) - self.lengths
            found[some] = np.maximum.reduceat(seconds[self.passed], begins[some])
        return found

    def of_hops(self, value: Callable[[Hop], float]) -> Floats:
        """Return by transfer the *value* of its hop."""
        return np.array([value(hop) for hop in self.hops], np.float64)[self.hop_of]

    def paths(self) -> list[list[int]]:
        """Return by transfer the numbers of the links on its paths."""
        links = iter(self.links[self.passed].tolist())
        return [list(islice(links, length)) for length in self.lengths.tolist()]

    def shares(self) -> Iterator[dict[int, float]]:
        """Yield by transfer its own crossings of the links on its paths, by their indices of *links*."""
        passed = iter(self.passed.tolist())
        for length, several in zip(self.lengths.tolist(), self.several.tolist(), strict=True):
            counted = Counter(islice(passed, length))
            yield {link: times / several for link, times in counted.items()}

    def without(self, links: Collection[int]) -> LinkLoad:
        """Return the load on all other links than *links*."""
        kept = ~np.isin(self.links, list(links))
        there, transfer = kept[self.passed], np.repeat(np.arange(len(self.lengths)), self.lengths)
        return LinkLoad(
            self.links[kept],
            self.crossings[kept],
            self.hops,
            self.hop_of,
            self.several,
            np.bincount(transfer[there], minlength=len(self.lengths)),
            (np.cumsum(kept) - 1)[self.passed[there]],
        )


class Paths(NamedTuple):
    """The paths of transfers, in order of the transfer.

    *links*: one path after the other. By path: *lengths*, how many links it has; *of*, its transfer.
    """

    links: Indices
    lengths: Indices
    of: Indices

    @classmethod
    def listed(cls, several: Sequence[Sequence[Sequence[int]]]) -> Paths:
        """The paths from the links of each; *several*: by transfer its paths."""
        every = list(chain.from_iterable(several))
        lengths = np.array([len(path) for path in every], np.int64)
        links = np.fromiter(chain.from_iterable(every), np.int64, int(lengths.sum()))
        return cls(links, lengths, np.repeat(np.arange(len(several)), [len(found) for found in several]))

    @classmethod
    def padded(cls, rows: Indices) -> Paths:
        """The paths of transfers with one each: the rows of *rows*, with -1 between links."""
        there = rows >= 0
        return cls(rows[there], there.sum(axis=1), np.arange(len(rows)))

    def sums(self, values: Floats) -> Floats:
        """Return by path the sum of *values*, one for each of *links*, in order."""
        path = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.bincount(path, values, len(self.lengths)).astype(np.float64)

    def firsts(self) -> list[tuple[int, ...]]:
        """Return the first path of each transfer."""
        links = iter(self.links.tolist())
        every = [tuple(islice(links, length)) for length in self.lengths.tolist()]
        return [every[number] for number in np.flatnonzero(np.diff(self.of, prepend=-1)).tolist()]


def route(cluster: Cluster, source: str, target: str) -> tuple[int, ...]:
    """Return the links from *source* to *target*; none from a device to itself."""
    return () if source == target else cluster.route(source, target)


def paths(cluster: Cluster, source: str, target: str, connection: int) -> tuple[tuple[int, ...], ...]:
    """Return the links of each path from *source* to *target*; one path without links from a device to itself."""
    return ((),) if source == target else cluster.paths(source, target, connection)


def all_paths(cluster: Cluster, ends: Indices, group: Sequence[str]) -> Paths:
    """Return the `paths` of transfers of a *group* between *ends*; those of a regular cluster all at once.

    *ends*: the numbers of sources and of targets in `Cluster.devices`, of shape ``(transfers, 2)``.
    """
    regular = cluster.regularity if len(ends) > FEW else None
    if regular is None:
        names = ((cluster.devices[source], cluster.devices[target]) for source, target in ends.tolist())
        own = connection(group)
        return Paths.listed([paths(cluster, *pair, own) for pair in names])
    apart = regular.server[ends[:, 0]] != regular.server[ends[:, 1]]
    across, inside = regular.routes(*ends[apart].T), _inside(cluster, regular, ends[~apart])
    rows = np.full((len(ends), max(across.shape[1], inside.shape[1])), -1)
    rows[apart, : across.shape[1]], rows[~apart, : inside.shape[1]] = across, inside
    return Paths.padded(rows)


def _inside(cluster: Cluster, regular: Regularity, ends: Indices) -> Indices:
    """The links between *ends* of one server each, padded with -1: found once for equal places in equal servers."""
    server, local = regular.server[ends[:, 0]], regular.local[regular.part[ends]]
    places = int(local.max(initial=0)) + 1
    alike = (regular.template[server] * places + local[:, 0]) * places + local[:, 1]
    _, first, which = np.unique(alike, return_index=True, return_inverse=True)
    routes = [route(cluster, *(cluster.devices[end] for end in pair)) for pair in ends[first].tolist()]
    longest = max(map(len, routes), default=0)
    rows = np.array([[*one, *[-1] * (longest - len(one))] for one in routes], np.int64).reshape(len(routes), longest)
    base = regular.base[server]
    found = rows[which]
    return np.where(found < 0, -1, found + (base - base[first][which])[:, None])


def connection(devices: Sequence[str]) -> int:
    """Return a number for the connections of the group of *devices*, which other groups do not use."""
    return crc32(",".join(devices).encode())


def hop_class(cluster: Cluster, source: str, target: str) -> str:
    """Return NET between servers; within one PCI if the route crosses PCIe or a link between sockets, else NVLINK."""
    if cluster.node_of(source) != cluster.node_of(target):
        return NET
    links = (cluster.links[number] for number in route(cluster, source, target))
    return PCI if any(link_class(link.kind) == PCI for link in links) else NVLINK


def _hops(cluster: Cluster, found: Paths, numbers: Indices) -> tuple[tuple[Hop, ...], Indices]:
    """The distinct hops of the transfers with the paths *found* between devices of *numbers*, and by transfer its hop.

    The latency is that of the longest path, the class as `hop_class` has it.
    """
    server = cluster.servers(numbers)
    links, begins = cluster.links, np.flatnonzero(np.diff(found.of, prepend=-1))
    latency = np.maximum.reduceat(found.sums(links.some(found.links, lambda link: link.latency)), begins)
    pcie = np.maximum.reduceat(found.sums(links.some(found.links, lambda link: link_class(link.kind) == PCI)), begins)
    classes = np.where(server[:, 0] != server[:, 1], 0, np.where(pcie > 0, 1, 2))
    seconds, place = np.unique(latency, return_inverse=True)
    kinds, hop_of = np.unique(place * 3 + classes, return_inverse=True)
    return tuple((float(seconds[one // 3]), (NET, PCI, NVLINK)[one % 3]) for one in kinds.tolist()), hop_of


def link_load(cluster: Cluster, devices: Sequence[str], step: Step, numbers: Indices | None = None) -> LinkLoad:
    """Place the transfers of *step* between positions of *devices* on the links of *cluster*.

    *numbers*: those of the devices in `Cluster.devices`, if they are known.
    """
    ends = (cluster.numbers(devices) if numbers is None else numbers)[step.ends]
    found = all_paths(cluster, ends, devices)
    hops, hop_of = _hops(cluster, found, ends)
    if step.in_switch:
        firsts = found.firsts()
        if cluster.chooses:
            ends_of = [(devices[a], devices[b]) for a, b in step.transfers]
            firsts = _on_trees(cluster, step, ends_of, firsts, connection(devices))
        copies = _copies(step, firsts)
        links, crossings = np.array(list(copies), np.int64), np.array(list(copies.values()), np.float64)
        found = Paths.listed([(path,) for path in firsts])
        order = np.argsort(links)
        passed = order[np.searchsorted(links[order], found.links)]
    else:
        links, crossings, passed = link_shares(found)
    lengths = np.bincount(found.of, found.lengths, len(ends)).astype(np.int64)
    return LinkLoad(links, crossings, hops, hop_of, np.bincount(found.of, minlength=len(ends)), lengths, passed)


def _on_trees(
    cluster: Cluster, step: Step, ends: Sequence[tuple[str, str]], firsts: Sequence[tuple[int, ...]], own: int
) -> list[tuple[int, ...]]:
    """By transfer its path, *firsts*, but switches return a sum on the way on which its parts came to them."""
    found = list(firsts)
    for number, (sender, receiver) in enumerate(ends):
        if step.switched(number) and not step.adds(number):
            found[number] = cluster.reversed(paths(cluster, receiver, sender, own)[0])
    return found


def link_shares(found: Paths) -> tuple[Indices, Floats, Indices]:
    """Return the links on the paths *found* in order of first use, and for each the number of transfers that cross it;
    and the index there of each link of the paths.

    The paths of a transfer have equal shares.

    >>> [column.tolist() for column in link_shares(Paths.listed([[[7, 1], [7, 2]], [[7]]]))]
    [[7, 1, 2], [2.0, 0.5, 0.5], [0, 1, 0, 2, 0]]
    """
    links, first, which = np.unique(found.links, return_index=True, return_inverse=True)
    several = np.bincount(found.of)
    whole = lcm(*distinct(several[found.of]).tolist())
    parts = np.bincount(which, np.repeat(whole // several[found.of], found.lengths), len(links)) / whole
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return links[order], parts[order], place[which]


def _copies(step: Step, paths: Sequence[Sequence[int]]) -> dict[int, int]:
    """By link: how often the vector crosses it if switches add and copy what `Step.switched` transfers carry.

    A link carries the distinct copies and, where parts are added at both of its ends, the parts that are its own.
    """
    alone: Counter[int] = Counter()
    passing: dict[int, set[tuple[bool, int, int]]] = {}
    for number, ((sender, receiver), path) in enumerate(zip(step.transfers, paths, strict=True)):
        if not step.switched(number):
            alone.update(path)
            continue
        adds = step.adds(number)
        for link in path:
            passing.setdefault(link, set()).add((adds, receiver if adds else sender, step.lane(number)))
    for link, copies in passing.items():
        sums = sum(adds for adds, _, _ in copies)
        alone[link] += len(copies) + min(sums, len(copies) - sums)
    return dict(alone)


def group_properties(
    cluster: Cluster, devices: Sequence[str], nodes: Sequence[Sequence[int]], rings: int
) -> GroupProperties:
    """Return the properties of a group. All servers are taken to equal the first server with two ranks."""
    inside, kind, switched = NVLINK, "", False
    pair = next((node for node in nodes if len(node) > 1), None)
    if pair is not None:
        source, target = devices[pair[0]], devices[pair[1]]
        inside = hop_class(cluster, source, target)
        path = route(cluster, source, target)
        kind = cluster.links[path[0]].kind if path else ""
        switched = "nvswitch" in cluster.kinds_passed(path)
    through_host = inside == PCI and any(
        "host" in cluster.kinds_passed(route(cluster, devices[a], devices[b])) for a, b in pairwise(pair or ())
    )
    vendor = "amd" if cluster.hosts and "epyc" in cluster.accelerator(cluster.hosts[0]).name.lower() else "intel"
    nic_near = len(nodes) == 1 or _nic_is_near(cluster, devices[nodes[0][0]], devices[nodes[1][0]])
    nic_pairs = len(nodes) == 1 or _nics_have_pairs(cluster, [devices[n] for n in nodes[0]], devices[nodes[1][0]])
    out = (
        [cluster.links[n] for n in route(cluster, devices[nodes[0][0]], devices[nodes[1][0]])] if len(nodes) > 1 else []
    )
    nic = next((link.kind for link in out if link_class(link.kind) == NET), "")
    return GroupProperties(
        len(devices),
        len(nodes),
        inside,
        kind,
        vendor,
        nic_near,
        switched,
        rings,
        nic_pairs,
        is_tcp(out),
        nic,
        through_host,
    )


def _nic_is_near(cluster: Cluster, device: str, elsewhere: str) -> bool:
    """Whether the route to the NIC passes no host."""
    kinds = cluster.kinds_passed(route(cluster, device, elsewhere))
    before = kinds[: kinds.index("nic")] if "nic" in kinds else kinds
    return "host" not in before


def _nics_have_pairs(cluster: Cluster, devices: Sequence[str], elsewhere: str) -> bool:
    """Whether beside each NIC in use there are two *devices* of the server, by which a ring enters and leaves."""
    if len(devices) == 1:
        return True
    paths = [route(cluster, device, elsewhere) for device in devices]
    before = [path[kinds.index("nic")] for path in paths if "nic" in (kinds := cluster.kinds_passed(path))]
    return min(Counter(cluster.topology.source[before].tolist()).values(), default=len(devices)) > 1


def nvlinks(link: Link) -> int:
    """Return the number of NVLinks that *link* bundles; 1 if it is of another kind."""
    return max(1, round(link.bandwidth / NVLINK_BANDWIDTH)) if link_class(link.kind) == NVLINK else 1
