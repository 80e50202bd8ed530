"""Routes of a group's transfers: the links that they load, how often, and the latency of each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, pairwise
from math import lcm
from zlib import crc32

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.hardware.links import Link, is_tcp
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


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """The load on the links by *transfers* that advance together.

    *links*: by number. *crossings*: for each link, the number of transfers that cross it. Of a transfer that is spread
    over several paths each one counts in part. By transfer: *hops*, (latency of the wire in s, link class), and
    *paths*, its links.
    """

    links: tuple[int, ...]
    crossings: tuple[float, ...]
    hops: tuple[tuple[float, str], ...]
    paths: tuple[tuple[int, ...], ...]

    @cached_property
    def distinct_hops(self) -> frozenset[tuple[float, str]]:
        """The distinct hops: few, however many transfers there are."""
        return frozenset(self.hops)

    def without(self, links: Collection[int]) -> LinkLoad:
        """Return the load on all other links than *links*."""
        kept = [(link, number) for link, number in zip(self.links, self.crossings, strict=True) if link not in links]
        paths = tuple(tuple(link for link in path if link not in links) for path in self.paths)
        return LinkLoad(tuple(link for link, _ in kept), tuple(number for _, number in kept), self.hops, paths)


def route(cluster: Cluster, source: str, target: str) -> tuple[int, ...]:
    """Return the links from *source* to *target*; none from a device to itself."""
    return () if source == target else cluster.route(source, target)


def paths(cluster: Cluster, source: str, target: str, connection: int) -> tuple[tuple[int, ...], ...]:
    """Return the links of each path from *source* to *target*; one path without links from a device to itself."""
    return ((),) if source == target else cluster.paths(source, target, connection)


def all_paths(
    cluster: Cluster, ends: Sequence[tuple[str, str]], connection: int, numbers: Indices | None = None
) -> list[tuple[tuple[int, ...], ...]]:
    """Return the `paths` of each (source, target) of *ends*; between servers of a regular cluster all at once.

    *numbers*: the numbers of sources and of targets in `Cluster.devices`, of shape ``(ends, 2)``.
    """
    regular = cluster.regularity if len(ends) > FEW else None
    if regular is None:
        return [paths(cluster, *pair, connection) for pair in ends]
    if numbers is None:
        numbers = np.stack([cluster.numbers(devices) for devices in zip(*ends, strict=True)], axis=1)
    sources, targets = numbers.T
    apart = regular.server[sources] != regular.server[targets]
    rows = iter(regular.routes(sources[apart], targets[apart]).tolist())
    return [
        (tuple([link for link in next(rows) if link >= 0]),) if far else (route(cluster, *pair),)
        for far, pair in zip(apart.tolist(), ends, strict=True)
    ]


def connection(devices: Sequence[str]) -> int:
    """Return a number for the connections of the group of *devices*, which other groups do not use."""
    return crc32(",".join(devices).encode())


def hop_class(cluster: Cluster, source: str, target: str) -> str:
    """Return NET between servers; within one PCI if the route crosses PCIe or a link between sockets, else NVLINK."""
    if cluster.node_of(source) != cluster.node_of(target):
        return NET
    links = (cluster.links[number] for number in route(cluster, source, target))
    return PCI if any(link_class(link.kind) == PCI for link in links) else NVLINK


def _hop_classes(cluster: Cluster, ends: Sequence[tuple[str, str]], numbers: Indices) -> list[str]:
    """The `hop_class` of each (source, target) of *ends*, which have these *numbers*."""
    server = cluster.servers(numbers)
    far = server[:, 0] != server[:, 1]
    inside = [route(cluster, *ends[place]) for place in np.flatnonzero(~far).tolist()]
    pcie = np.array([link_class(link.kind) == PCI for link in cluster.links.distinct], np.bool_)
    passed = pcie[cluster.links.which[np.fromiter(chain.from_iterable(inside), np.int64)]]
    crossed = np.bincount(np.repeat(np.arange(len(inside)), [*map(len, inside)]), passed, len(inside)) > 0
    near = iter(crossed.tolist())
    return [NET if across else PCI if next(near) else NVLINK for across in far.tolist()]


def link_load(cluster: Cluster, devices: Sequence[str], step: Step, numbers: Indices | None = None) -> LinkLoad:
    """Place the transfers of *step* between positions of *devices* on the links of *cluster*.

    *numbers*: those of the devices in `Cluster.devices`, if they are known.
    """
    of_ends = (cluster.numbers(devices) if numbers is None else numbers)[np.array(step.transfers).reshape(-1, 2)]
    ends = [(devices[sender], devices[receiver]) for sender, receiver in step.transfers]
    own = connection(devices)
    several = all_paths(cluster, ends, own, of_ends)
    firsts = [found[0] for found in several]
    if step.in_switch and cluster.chooses:
        firsts = _on_trees(cluster, step, ends, firsts, own)
    crossings: Mapping[int, float] = _copies(step, firsts) if step.in_switch else link_shares(several)
    latencies = _latencies(cluster, several)
    hops = tuple(zip(latencies, _hop_classes(cluster, ends, of_ends), strict=True))
    passed = firsts if step.in_switch else [tuple(dict.fromkeys(chain(*found))) for found in several]
    return LinkLoad(tuple(crossings), tuple(crossings.values()), hops, tuple(passed))


def _on_trees(
    cluster: Cluster, step: Step, ends: Sequence[tuple[str, str]], firsts: Sequence[tuple[int, ...]], own: int
) -> list[tuple[int, ...]]:
    """By transfer its path, *firsts*, but switches return a sum on the way on which its parts came to them."""
    found = list(firsts)
    for number, (sender, receiver) in enumerate(ends):
        if step.switched(number) and not step.adds(number):
            found[number] = cluster.reversed(paths(cluster, receiver, sender, own)[0])
    return found


def _latencies(cluster: Cluster, several: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """By transfer: the latency of its longest path, s."""
    each = iter(cluster.latencies_of(list(chain.from_iterable(several))))
    return [max(islice(each, len(found))) for found in several]


def link_shares(several: Sequence[Sequence[Sequence[int]]]) -> dict[int, float]:
    """Return by link the number of transfers that cross it. *several*: by transfer its paths, with equal shares.

    >>> link_shares([[[0, 1], [0, 2]], [[0]]])
    {0: 2.0, 1: 0.5, 2: 0.5}
    """
    whole = lcm(*map(len, several))
    if whole == 1:
        return dict(Counter(chain.from_iterable(found[0] for found in several)))
    parts: Counter[int] = Counter()
    for found in several:
        for link in chain(*found):
            parts[link] += whole // len(found)
    return {link: part / whole for link, part in parts.items()}


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
