"""An inventory lists the parts of one server: its GPUs, NICs and sockets, their places, and the links between GPUs.

A server whose parts are spread evenly, as in the node shapes, becomes the ``cluster:`` section of a scenario. Any other
becomes a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.units import show
from clustersim.topologies.catalogue import GPUS, device, link
from clustersim.topologies.nodes.hybrid_cube_mesh import DOUBLE, SINGLE

SWITCH = -1
"""Stands for the NVSwitches in place of the second GPU."""

NVLINKS = 18
"""The most links of a GPU (H100, B200 data sheets). If full-mesh links would exceed it, they lead to a switch."""

NICS = {100e9: "ib_edr", 200e9: "ib_hdr", 400e9: "ib_ndr", 25e9: "eth_25", 10e9: "eth_10"}
"""Kinds by bits/s. The inventory does not distinguish InfiniBand and Ethernet; their latencies differ little."""

PCIE = {8.0: "pcie3", 16.0: "pcie4", 32.0: "pcie5"}
"""Kinds by GT/s of a lane (PCI Express Base Specification, generations 3 to 5)."""

LANES = 16


@dataclass(frozen=True)
class ServerPart:
    """A GPU or a NIC: the number of its *socket*, and the name of its PCIe *switch*, if any."""

    socket: int
    switch: str | None = None


@dataclass(frozen=True)
class Inventory:
    """One server.

    *nvlinks*: (GPU, GPU or `SWITCH`) -> links of the pair. *accelerator* and *bus*: names of the catalogue. *nic*: the
    bits/s of a port. None if unknown.
    """

    gpus: tuple[ServerPart, ...]
    nics: tuple[ServerPart, ...]
    nvlinks: Mapping[tuple[int, int], int]
    accelerator: str | None = None
    bus: str | None = None
    nic: float | None = None

    @property
    def sockets(self) -> tuple[int, ...]:
        """The numbers of the sockets with GPUs or NICs."""
        return tuple(sorted({part.socket for part in (*self.gpus, *self.near_nics)}))

    @property
    def switches(self) -> tuple[str, ...]:
        """The PCIe switches with GPUs, in order of their first GPU."""
        return tuple(dict.fromkeys(gpu.switch for gpu in self.gpus if gpu.switch is not None))

    @property
    def near_nics(self) -> tuple[ServerPart, ...]:
        """The NICs of the GPUs: those on their PCIe switches, or all if there are none there."""
        return tuple(nic for nic in self.nics if nic.switch in self.switches) or self.nics

    @property
    def shape(self) -> tuple[str, int] | None:
        """The node shape of the NVLinks, and the links of each GPU. None if it is no known shape."""
        count = len(self.gpus)
        if not self.nvlinks:
            return "pcie", 0
        if any(SWITCH in pair for pair in self.nvlinks):
            each = {self.nvlinks.get((gpu, SWITCH), 0) for gpu in range(count)}
            return ("switch", each.pop()) if len(each) == 1 and len(self.nvlinks) == count else None
        if self.nvlinks == {pair: n for n, pairs in ((1, SINGLE), (2, DOUBLE)) for pair in pairs}:
            return "hybrid_cube_mesh", 6
        found = {self.nvlinks.get(pair, 0) for pair in combinations(range(count), 2)}
        if len(found) > 1:
            return None
        each_pair = found.pop()
        every = each_pair * (count - 1)
        return ("full_mesh", every) if every <= NVLINKS else ("switch", each_pair)

    @property
    def even(self) -> bool:
        """Whether the parts are spread in order and evenly, as in the node shapes."""
        gpus, sockets, switches = len(self.gpus), self.sockets, self.switches
        socket_of = [sockets.index(gpu.socket) for gpu in self.gpus]
        switch_of = [switches.index(gpu.switch) if gpu.switch else None for gpu in self.gpus]
        even_sockets = [gpu * len(sockets) // gpus for gpu in range(gpus)]
        even_switches = [gpu * len(switches) // gpus if switches else None for gpu in range(gpus)]
        return socket_of == even_sockets and switch_of == even_switches and self._nics_even()

    def _nics_even(self) -> bool:
        """Whether all places have the same number of NICs. A single NIC must be at the first place."""
        places: Sequence[Any] = self.switches or self.sockets
        at = Counter(nic.switch if self.switches else nic.socket for nic in self.near_nics)
        if len(self.near_nics) == 1:
            return places[0] in at
        return not self.nics or (set(at) == set(places) and len(set(at.values())) == 1)


def section(
    inventory: Inventory, nodes: int = 1, *, accelerator: str | None = None, nic: str | None = None
) -> dict[str, Any]:
    """Return the ``cluster:`` section of *nodes* servers like *inventory*, as plain data.

    *accelerator* and *nic* name what the inventory lacks. Raises `CalibrationError` if one is still missing, and for a
    server that no node shape describes.
    """
    shape = inventory.shape
    if shape is None or not inventory.even:
        raise CalibrationError("no node shape describes this server; it can be written as a graph: -o FILE.json")
    chosen = _accelerator(inventory, accelerator)
    form, links = shape
    node: dict[str, Any] = {"accelerator": chosen, "accelerators": len(inventory.gpus)}
    own = device(GPUS, chosen).links
    if form != "pcie":
        if own is None:
            raise CalibrationError(f"NVLink joins the GPUs, but {chosen} has none; name the GPU: --accelerator")
        few = {"links": links} if links != own.count and form != "hybrid_cube_mesh" else {}
        node["intra"] = {"kind": own.kind, "shape": form, **few}
    if inventory.bus:
        node["host"] = {"kind": inventory.bus}
    node |= {"sockets": len(inventory.sockets), "pcie_switches": len(inventory.switches)}
    if inventory.nics:
        node |= {"nics": len(inventory.near_nics), "nic": _nic(inventory, nic)}
    return {"nodes": nodes, "node": node}


def _accelerator(inventory: Inventory, accelerator: str | None) -> str:
    chosen = accelerator or inventory.accelerator
    if chosen is None:
        raise CalibrationError(
            "the inventory does not name the GPU; name it: --accelerator a100_80gb, or another of `list gpus`"
        )
    return chosen


def _nic(inventory: Inventory, nic: str | None) -> dict[str, Any]:
    if nic is not None:
        return {"kind": nic}
    if inventory.nic is None:
        raise CalibrationError(
            "the inventory does not have the speed of the NICs; name their kind: --nic ib_hdr, or another link"
        )
    nearest = min(NICS, key=lambda bits: abs(bits - (inventory.nic or 0)))
    exact = {} if nearest == inventory.nic else {"bandwidth": f"{inventory.nic / 1e9:g} Gb/s"}
    return {"kind": NICS[nearest], **exact}


def gpu_called(name: str) -> str | None:
    """Return the catalogue's GPU for a driver's *name*: all its words occur in the name, and the longest such GPU.

    >>> gpu_called("NVIDIA A100-SXM4-80GB"), gpu_called("NVIDIA H100 80GB HBM3"), gpu_called("GeForce")
    ('a100_80gb', 'h100', None)
    """
    words = name.lower().replace("-", " ").split()
    fitting = [one for one in names(GPUS) if all(word in words for word in one.split("_"))]
    return max(fitting, key=len, default=None)


def graph(inventory: Inventory, *, accelerator: str | None = None, nic: str | None = None) -> dict[str, Any]:
    """Return one server like *inventory* as networkx node-link data, for ``cluster: {graph: FILE.json}``."""
    chosen = _accelerator(inventory, accelerator)
    own = device(GPUS, chosen)
    bus = link(inventory.bus or own.bus or "pcie4")
    sockets = {socket: f"host {number}" for number, socket in enumerate(inventory.sockets)}
    switches = {name: f"pcie_switch {number}" for number, name in enumerate(inventory.switches)}
    vertices = [
        {"id": f"gpu {gpu}", "kind": "gpu", "node": 0, "accelerator": chosen} for gpu in range(len(inventory.gpus))
    ]
    vertices += [{"id": host, "kind": "host", "node": 0} for host in sockets.values()]
    vertices += [{"id": switch, "kind": "pcie_switch", "node": 0} for switch in switches.values()]
    vertices += [{"id": f"nic {number}", "kind": "nic", "node": 0} for number in range(len(inventory.near_nics))]
    socket_of = {gpu.switch: gpu.socket for gpu in inventory.gpus if gpu.switch is not None}
    edges = [_edge(switches[name], sockets[socket], bus) for name, socket in socket_of.items()]
    edges += [_edge(a, b, bus) for a, b in combinations(sockets.values(), 2)]
    for kind, parts in (("gpu", inventory.gpus), ("nic", inventory.near_nics)):
        for number, part in enumerate(parts):
            place = switches.get(part.switch or "", sockets[part.socket])
            edges.append(_edge(f"{kind} {number}", place, bus))
    if inventory.nvlinks:
        if own.links is None:
            raise CalibrationError(f"NVLink joins the GPUs, but {chosen} has none; name the GPU: --accelerator")
        if any(SWITCH in pair for pair in inventory.nvlinks):
            vertices.append({"id": "nvswitch 0", "kind": "nvswitch", "node": 0})
        for (one, other), count in inventory.nvlinks.items():
            end = "nvswitch 0" if other == SWITCH else f"gpu {other}"
            edges.append(_edge(f"gpu {one}", end, link(own.links.kind, count=count)))
    return {"directed": False, "multigraph": False, "graph": {}, "nodes": vertices, "edges": edges}


def _edge(source: str, target: str, joint: Link) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "kind": joint.kind,
        "bandwidth": show(joint.bandwidth, "bandwidth", 9),
        "latency": show(joint.latency, "time", 9),
    }
