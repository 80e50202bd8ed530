"""Transfers of a group lie on links: which, how often, and what latency each message meets; pure in the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from simulator.cluster import Cluster, Link
from simulator.network.step import Step
from simulator.network.transport.transport import NET, NVLINK, PCI, Setting, link_class


@dataclass(frozen=True, eq=False)
class Load:
    """What *transfers* that advance together lay on the links.

    *links* by number and how many of the transfers cross each; by transfer its *hops*, (latency of the wire, class),
    and the *paths*, its links.
    """

    links: tuple[int, ...]
    crossings: tuple[int, ...]
    hops: tuple[tuple[float, str], ...]
    paths: tuple[tuple[int, ...], ...]

    @cached_property
    def distinct_hops(self) -> frozenset[tuple[float, str]]:
        """The hops that differ: few, however many transfers there are."""
        return frozenset(self.hops)


def route(cluster: Cluster, source: str, target: str) -> tuple[int, ...]:
    """The links from *source* to *target*; none from a device to itself."""
    return () if source == target else cluster.route(source, target)


def hop_class(cluster: Cluster, source: str, target: str) -> str:
    """NET between servers; inside one PCI where the route crosses PCIe or a link between sockets, else NVLINK."""
    if cluster.node_of(source) != cluster.node_of(target):
        return NET
    links = (cluster.links[number] for number in route(cluster, source, target))
    return PCI if any(link_class(link.kind) == PCI for link in links) else NVLINK


def load(cluster: Cluster, devices: Sequence[str], step: Step) -> Load:
    """Lay the transfers of *step* between positions of *devices* on the links of *cluster*."""
    ends = [(devices[sender], devices[receiver]) for sender, receiver in step.transfers]
    paths = [route(cluster, *pair) for pair in ends]
    crossings = _copies(step, paths) if step.in_switch else Counter(chain.from_iterable(paths))
    latencies = cluster.latencies_of(paths)
    hops = tuple((latency, hop_class(cluster, *pair)) for latency, pair in zip(latencies, ends, strict=True))
    return Load(tuple(crossings), tuple(crossings.values()), hops, tuple(paths))


def _copies(step: Step, paths: Sequence[Sequence[int]]) -> dict[int, int]:
    """By link how often the vector crosses it where switches add and multiply: the copies that differ, and one more."""
    passing: dict[int, set[tuple[bool, int]]] = {}
    for number, ((sender, receiver), path) in enumerate(zip(step.transfers, paths, strict=True)):
        adds = step.adds(number)
        for link in path:
            passing.setdefault(link, set()).add((adds, receiver if adds else sender))
    return {link: len(copies) + 1 for link, copies in passing.items()}


def setting(cluster: Cluster, devices: Sequence[str], nodes: Sequence[Sequence[int]], rings: int) -> Setting:
    """What a library sees of a group; servers are taken to be like the first that has two of its ranks."""
    inside, kind, switched = NVLINK, "", False
    pair = next((node for node in nodes if len(node) > 1), None)
    if pair is not None:
        source, target = devices[pair[0]], devices[pair[1]]
        inside = hop_class(cluster, source, target)
        path = route(cluster, source, target)
        kind = cluster.links[path[0]].kind if path else ""
        switched = "nvswitch" in cluster.kinds_passed(path)
    vendor = "amd" if cluster.hosts and "epyc" in cluster.accelerator(cluster.hosts[0]).name.lower() else "intel"
    near = len(nodes) == 1 or _near(cluster, devices[nodes[0][0]], devices[nodes[1][0]])
    return Setting(len(devices), len(nodes), inside, kind, vendor, near, switched, rings)


def _near(cluster: Cluster, device: str, elsewhere: str) -> bool:
    """Whether the way to the NIC passes no host."""
    kinds = cluster.kinds_passed(route(cluster, device, elsewhere))
    before = kinds[: kinds.index("nic")] if "nic" in kinds else kinds
    return "host" not in before


def nvlinks(link: Link) -> int:
    """How many NVLinks *link* bundles; 1 where it is of another kind."""
    return max(1, round(link.bandwidth / NVLINK_BANDWIDTH)) if link_class(link.kind) == NVLINK else 1


NVLINK_BANDWIDTH = 25e9
"""bytes/s of one link of NVLink 2 to 4 in one direction (V100, A100 and H100 data sheets: 150, 300, 450 GB/s of 6, 12,
18 links)."""

MOST_CHANNELS = 32
"""MAXCHANNELS, NVIDIA/nccl src/include/devcomm.h, v2.10.3."""
