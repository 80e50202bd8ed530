"""The wiring of a server: its GPUs, hosts (sockets), PCIe switches and NICs, the links between them, and the routes.

All nodes of a kind share one wiring, numbered from 0; `topologies.assembly` numbers it through the cluster. Every shape
of `topologies/nodes` begins with the PCIe tree, which all servers have, and adds the links between GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from itertools import combinations, pairwise
from math import inf, isinf

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.links import DRAM, TCP, Link
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError

PCIE = ("pcie_switch", "host")
"""Kinds of vertices that make up the PCIe tree."""


@dataclass(frozen=True, slots=True)
class Drives:
    """NVMe drives: the links that *read* and *write* them, and their *capacity* in bytes."""

    read: Link
    write: Link
    capacity: float


@dataclass(frozen=True, slots=True)
class Server:
    """The parts of a server.

    *intra*: the link between GPUs. It is one of the *links* of a GPU, or, if *links* is None, everything between a GPU
    and one neighbour (a GPU, a switch). *bus*: from GPUs and PCIe switches to a host. *nic_bus*: from there to a NIC.
    *socket*: from host to host. *nic*: from a NIC to the fabric. *pcie_switches* is 0 if devices are linked to their
    socket directly. Devices are spread over switches, and switches over sockets, in order and evenly. *drives*: its
    NVMe drives, all together.
    """

    accelerator: Accelerator
    accelerators: int
    processor: Accelerator
    sockets: int
    bus: Link
    socket: Link | None = None
    pcie_switches: int = 0
    pcie_roots: int = 0
    intra: Link | None = None
    links: int | None = None
    nics: int = 0
    nic: Link | None = None
    nic_bus: Link | None = None
    drives: Drives | None = None

    @property
    def memory(self) -> Link | None:
        """The memory of one host, as a link from the host to itself; None if it has no limit."""
        bandwidth = self.processor.memory_bandwidth * self.processor.memory_efficiency
        return None if isinf(bandwidth) else Link(DRAM, bandwidth, 0.0)

    def joint(self, neighbours: int = 1) -> Link:
        """Return the link of a GPU to one of its *neighbours*, over which its links are spread evenly."""
        if self.intra is None:
            raise ClusterError("the GPUs of a node have no link of their own; give intra a kind, or the shape pcie")
        return self.bundle(1 if self.links is None else max(1, self.links // neighbours))

    def bundle(self, count: int) -> Link:
        """Return *count* parallel links between GPUs."""
        if self.intra is None:
            raise ClusterError("the GPUs of a node have no link of their own; give intra a kind, or the shape pcie")
        return replace(self.intra, bandwidth=self.intra.bandwidth * count)

    @property
    def ports(self) -> tuple[Link, ...]:
        """The link to the fabric of each NIC of the wiring. NICs beyond one for each GPU are bundled at their GPU."""
        if self.nic is None or not self.nics:
            return ()
        number = min(self.nics, self.accelerators)
        counts = [0] * number
        for nic in range(self.nics):
            counts[nic * number // self.nics] += 1
        return tuple(replace(self.nic, bandwidth=self.nic.bandwidth * count) for count in counts)


@dataclass
class Wiring:
    """One server's vertices and links. *through_gpus*: whether GPUs forward messages for others (Infinity Fabric).

    *vertices*: the kind of each vertex, by name. *links*: the links from each vertex to its neighbours, in order.
    *walk*: the route between two GPUs, if the shape knows it; None: the shortest one. *relays*: whether a GPU forwards
    for two GPUs that have no link of their own, rather than PCIe.
    """

    server: Server
    vertices: dict[str, str] = field(default_factory=dict)
    links: dict[str, dict[str, Link]] = field(default_factory=dict)
    through_gpus: bool = False
    walk: Callable[[str, str], tuple[str, ...]] | None = None
    relays: bool = False
    _routes: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    _nic_of: dict[str, str] = field(default_factory=dict)
    _of_kind: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs in order."""
        return self.of_kind("gpu")

    @property
    def nics(self) -> tuple[str, ...]:
        """The NICs in order."""
        return self.of_kind("nic")

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """The vertices of *kind* in order."""
        if kind not in self._of_kind:
            self._of_kind[kind] = tuple(vertex for vertex, own in self.vertices.items() if own == kind)
        return self._of_kind[kind]

    def accelerator(self, vertex: str) -> Accelerator | None:
        """Return the accelerator at *vertex*, if any."""
        drives = self.server.drives
        store = Accelerator("nvme", memory_bytes=drives.capacity) if drives else None
        return {"gpu": self.server.accelerator, "host": self.server.processor, "nvme": store}.get(self.vertices[vertex])

    def add(self, kind: str, number: int) -> str:
        """Add a vertex and return its name."""
        vertex = f"{kind} {number}"
        self.vertices[vertex] = kind
        self.links[vertex] = {}
        self._of_kind.pop(kind, None)
        return vertex

    def join(self, a: str, b: str, link: Link) -> None:
        """Add *link* from *a* to *b* and back."""
        for vertex in (a, b):
            if vertex not in self.vertices:
                raise ClusterError(f"the server has no {vertex} to join; add it first")
        self.links[a][b] = link
        self.links[b][a] = link

    def route(self, source: str, target: str) -> tuple[str, ...]:
        """Return the vertices from *source* to *target*, ends included.

        The route uses the GPUs' own links if they lead there, else PCIe and the links between sockets. It passes
        through no other GPU (unless *through_gpus*, or *relays*) and no NIC.
        """
        key = source, target
        if key not in self._routes and self._staged(source, target):
            self._routes[key] = self._through_host(source, target)
        if key not in self._routes and self.walk and {self.vertices[source], self.vertices[target]} == {"gpu"}:
            self._routes[key] = self.walk(source, target)
        if key not in self._routes:
            barred = {"nic", "nvme"} if self.through_gpus else {"nic", "gpu", "nvme"}
            tried = [{*barred, *PCIE}, {"nic", "nvme", *PCIE}, barred] if self.relays else [{*barred, *PCIE}, barred]
            paths = (self._shortest(source, target, kinds) for kinds in tried)
            path = next((path for path in paths if path), None)
            if path is None:
                raise ClusterError(f"there is no route inside a node from {source} to {target}")
            self._routes[key] = path
        return self._routes[key]

    def over_nvlink(self, source: str, target: str) -> bool:
        """Whether the route between two GPUs passes neither PCIe nor a host."""
        return not any(self.vertices[vertex] in PCIE for vertex in self.route(source, target))

    def _staged(self, source: str, target: str) -> bool:
        """Whether the memory of a host lies between *source* and *target*: a GPU and a NIC that the kernel serves."""
        by_tcp = self.server.nic is not None and self.server.nic.protocol == TCP
        return by_tcp and {self.vertices[source], self.vertices[target]} == {"gpu", "nic"} and "host 0" in self.vertices

    def _through_host(self, source: str, target: str) -> tuple[str, ...]:
        """The route by the host that is nearest to the GPU."""
        gpu = source if self.vertices[source] == "gpu" else target
        host = min(self.of_kind("host"), key=lambda one: len(self.route(gpu, one)))
        return self.route(source, host) + self.route(host, target)[1:]

    def _shortest(self, source: str, target: str, barred: set[str]) -> tuple[str, ...] | None:
        """The path with the fewest links, and among those the widest, that avoids vertices of the kinds in *barred*."""
        hops = self._hops(source, barred, {target})
        if target not in hops:
            return None
        paths: list[tuple[str, ...]] = [(target,)]
        for hop in range(hops[target] - 1, -1, -1):
            paths = [(v, *path) for path in paths for v, own in hops.items() if own == hop and path[0] in self.links[v]]
        return max(sorted(paths), key=self._width)

    def _hops(self, source: str, barred: Collection[str], sought: Collection[str]) -> dict[str, int]:
        """The number of links from *source* to each vertex up to the nearest of *sought*.

        No vertex of a kind in *barred* lies between them.
        """
        hops, reached, nearest = {source: 0}, [source], inf
        for vertex in reached:
            if hops[vertex] >= nearest:
                break
            for other in self.links[vertex]:
                if other not in hops and (self.vertices[other] not in barred or other in sought):
                    hops[other] = hops[vertex] + 1
                    reached.append(other)
                    nearest = min(nearest, hops[other] if other in sought else inf)
        return hops

    def _width(self, path: tuple[str, ...]) -> float:
        return min((self.links[a][b].bandwidth for a, b in pairwise(path)), default=0.0)

    def nic_of(self, device: str) -> str:
        """Return the NIC through which *device* reaches the fabric: the nearest one.

        Devices with equally near NICs share them.
        """
        if not self._nic_of:
            if not self.nics:
                raise ClusterError(f"{device} has no NIC to reach other nodes; give the node nics")
            self._nic_of = {nic: nic for nic in self.nics}
            for kind in dict.fromkeys(kind for kind in self.vertices.values() if kind != "nic"):
                self._share_nics(self.of_kind(kind))
        return self._nic_of[device]

    def _share_nics(self, devices: Sequence[str]) -> None:
        """Assign each of *devices* one of its nearest NICs. Devices with the same nearest NICs take them in turn."""
        peers: dict[tuple[str, ...], list[str]] = {}
        place = {nic: number for number, nic in enumerate(self.nics)}
        for device in devices:
            hops = self._hops(device, () if self.through_gpus else ("gpu",), place)
            least = min((hops[nic] for nic in hops if nic in place), default=0)
            near = sorted((nic for nic in hops if nic in place and hops[nic] == least), key=place.__getitem__)
            peers.setdefault(tuple(near), []).append(device)
        for nics, sharing in peers.items():
            for turn, device in enumerate(sharing):
                self._nic_of[device] = nics[turn * len(nics) // len(sharing)] if nics else self.nics[0]


def pcie_tree(server: Server, gpu_bus: Link | None = None, *, nics: bool = True) -> Wiring:
    """Wire hosts in pairs, PCIe switches below them, then GPUs (by *gpu_bus*, or the server's bus) and NICs.

    Without *nics* the shape adds the NICs.
    """
    wiring = Wiring(server)
    for number in range(server.accelerators):
        wiring.add("gpu", number)
    hosts = [wiring.add("host", number) for number in range(server.sockets)]
    for pair in combinations(hosts, 2):
        wiring.join(*pair, server.socket or server.bus)
    switches = [wiring.add("pcie_switch", number) for number in range(server.pcie_switches)]
    roots = [wiring.add("pcie_switch", server.pcie_switches + number) for number in range(server.pcie_roots)]
    for root, host in zip(roots, spread(hosts, len(roots)), strict=True):
        wiring.join(root, host, server.bus)
    for switch, above in zip(switches, spread(roots or hosts, len(switches)), strict=True):
        wiring.join(switch, above, server.bus)
    places = switches or hosts
    for gpu, place in zip(wiring.gpus, spread(places, server.accelerators), strict=True):
        wiring.join(gpu, place, gpu_bus or server.bus)
    if nics:
        attach_nics(wiring, spread(places, len(server.ports)))
    _attach_stores(wiring, hosts)
    return wiring


def _attach_stores(wiring: Wiring, hosts: Sequence[str]) -> None:
    """Attach its memory to each of *hosts*, and the node's NVMe drives to the first."""
    for host in hosts:
        if wiring.server.memory is not None:
            wiring.join(host, host, wiring.server.memory)
    if wiring.server.drives is not None:
        drive, drives = wiring.add("nvme", 0), wiring.server.drives
        wiring.links[drive][hosts[0]], wiring.links[hosts[0]][drive] = drives.read, drives.write


def attach_nics(wiring: Wiring, places: list[str]) -> None:
    """Attach a NIC at each of *places*. The bus of bundled NICs is bundled too."""
    server = wiring.server
    bus = server.nic_bus or server.bus
    for number, (place, port) in enumerate(zip(places, server.ports, strict=True)):
        count = round(port.bandwidth / server.nic.bandwidth) if server.nic else 1
        wiring.join(wiring.add("nic", number), place, replace(bus, bandwidth=bus.bandwidth * count))


def spread(places: list[str], number: int) -> list[str]:
    """Return the place of each of *number* parts that are spread over *places* in order and evenly.

    >>> spread(["host 0", "host 1"], 4)
    ['host 0', 'host 0', 'host 1', 'host 1']
    """
    return [places[item * len(places) // number] for item in range(number)]
