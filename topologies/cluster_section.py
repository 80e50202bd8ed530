"""The ``cluster:`` section of a scenario in all its forms: nodes and fabric, uniform, tree, a user's own graph.

Every form has ``build(folder)``, which returns the `Cluster`. The catalogue provides the defaults.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf, prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.document import Document, merged, part
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.reading.quantities import (
    LEAST_RATIO,
    Bandwidth,
    Count,
    Index,
    Ratio,
    Section,
    Time,
    one_or_list,
)
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.validation import Deferred, Fault, validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies.assembly import assemble, cable_of
from clustersim.topologies.catalogue import CPUS, GPUS, LinkData, device, known, link_data
from clustersim.topologies.fabrics._network import Routing
from clustersim.topologies.node_and_fabric import FABRICS, Cpu, FabricSection, Gpu, NodeSection
from clustersim.topologies.nodes._server import Wiring

CLUSTERS = "clustersim.topologies.clusters"

BYTES_OF_A_DEVICE = 5e3
"""Of memory that a simulated GPU of a regular cluster takes: some 4 GB for 1,048,576, 0.6 GB for 98,304 (MegaScale's
175B model, tp 8 x pp 8)."""


DEFAULT_RADIX = 40
"""Ports of a switch if the catalogue lacks the NIC's kind: those of an HDR switch (NVIDIA QM8700)."""


def _catalogue_link(kind: str) -> LinkData | None:
    """The catalogue's entry of links of *kind*, if any."""
    try:
        return link_data(kind)
    except lookup.UnknownName:
        return None


def memory_of_this_machine() -> float:
    """Return the bytes of memory of the machine that simulates; infinite if its system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return inf


def _check_room(path: str, devices: int) -> None:
    """Raise `Fault` at *path* if a simulation of *devices* takes more memory than this machine has."""
    most, needed = memory_of_this_machine(), devices * BYTES_OF_A_DEVICE
    if needed > most:
        raise Fault(
            path,
            f"a simulation of {devices:,} devices takes about {show(needed, 'size', 2)} of memory, and this machine "
            f"has {show(most, 'size', 3)}, enough for {most / BYTES_OF_A_DEVICE:,.0f}",
        )


def _two_vertices(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(end, str) for end in value):
        raise ValueError("must be two vertices, e.g. [gpu 17, nic 17]")
    return tuple(value)


class Degradation(Section):
    """A factor *bandwidth* on the *link* between two vertices, in both directions.

    If two vertices of one node have no common link, the factor applies to every link of the route between them.
    """

    link: Annotated[tuple[str, str], BeforeValidator(_two_vertices)]
    """Two vertices of the cluster, e.g. [gpu 17, nic 17]; show topology prints names. Required."""
    bandwidth: Ratio
    """Factor on the link's bandwidth in both directions, e.g. 0.25. Required."""


class ClusterSection(Section):
    """The common part of all forms of the section."""

    degraded: list[Degradation] = Field(default_factory=list)
    """Links with a part of their bandwidth."""

    def build(self, folder: Path | None = None, routing: Routing | None = None) -> Cluster:
        """Return the cluster. *routing*: how its switches choose among equal-cost paths.

        Files are relative to *folder*. Raises `ClusterError` if its parts do not fit together.
        """
        cluster = self._whole_cluster(folder or Path(), routing or Routing())
        if not self.degraded:
            return cluster
        factors: dict[tuple[str, str], float] = {}
        for entry in self.degraded:
            for ends in _links_between(cluster, *entry.link):
                factors[ends] = factors.get(ends, 1.0) * entry.bandwidth
        for ends, factor in factors.items():
            if not LEAST_RATIO <= factor <= 1 / LEAST_RATIO:
                raise ClusterError(
                    f"cluster.degraded: the factors of {' - '.join(ends)} multiply to {factor:g}, which is absurd"
                )
        return cluster.degraded((a, b, factor) for (a, b), factor in factors.items())

    def _whole_cluster(self, folder: Path, routing: Routing) -> Cluster:
        raise NotImplementedError


def _has_rails(wiring: Wiring) -> bool:
    """Whether GPUs of a node have several NICs, and reach each other without PCIe."""
    gpus = wiring.gpus
    return len(wiring.nics) > 1 and any(wiring.over_nvlink(gpus[0], other) for other in gpus[1:])


def _check_one_path(routing: Routing) -> None:
    """Raise `ClusterError` if *routing* chooses among paths: this form of cluster has one between two devices."""
    if routing.policy in ("adaptive", "ecmp"):
        raise ClusterError(
            f"network.routing: {routing.policy} needs equal-cost paths, and this cluster has one path between two "
            "devices; take auto, or nodes with a fabric such as fat_tree"
        )


def _links_between(cluster: Cluster, source: str, target: str) -> list[tuple[str, str]]:
    names = cluster.vertices.names
    for vertex in (source, target):
        if vertex not in names:
            near = lookup.nearest(vertex, list(names))[:4]
            raise ClusterError(f'cluster.degraded: no vertex "{vertex}"; near it are: {", ".join(near)}')
    if not cluster.linked(source, target):
        nodes = [cluster.vertices.node[cluster.vertex(vertex)] for vertex in (source, target)]
        if nodes[0] == nodes[1] != NONE:
            return [cluster.ends[number] for number in cluster.route(source, target)]
    return [(source, target)]


@lru_cache(maxsize=16)
def _preset(name: str) -> Document:
    return part(read(lookup.data_file(CLUSTERS, name)), "cluster")


def on_preset(preset: Document, data: dict[str, Any]) -> dict[str, Any]:
    """Return *preset* overridden by *data*. A fabric of another kind takes nothing from the preset.

    *data* may include the preset already, as the data of a scenario does.
    """
    fabric, base = data.get("fabric"), preset.data.get("fabric", {})
    if isinstance(fabric, dict) and fabric.get("kind", base.get("kind")) != base.get("kind"):
        fabric = {key: value for key, value in fabric.items() if key not in base or base[key] != value}
        return {**merged(preset, Document(data)).data, "fabric": fabric}
    return merged(preset, Document(data)).data


class NodesSection(ClusterSection):
    """Nodes and a fabric; lists of both for nodes of several kinds."""

    preset: str | None = None
    """A file of topologies/clusters, uniform, tree, or the path of a .yaml file; keys beside it override it."""
    nodes: Annotated[Count | list[Count], one_or_list(Count)] = 1
    """Number of nodes; a list for several kinds of node."""
    node: Annotated[NodeSection | list[NodeSection], one_or_list(NodeSection)]
    """One node; a list for several kinds of node. Required without a preset."""
    fabric: FabricSection = Field(default_factory=lambda: FabricSection(kind="switch"))
    """The network between the nodes."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Source of each value of a preset, by key."""

    @model_validator(mode="before")
    @classmethod
    def _on_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("preset"), str):
            return data
        known(CLUSTERS, "cluster", data["preset"], "preset")
        return on_preset(_preset(data["preset"]), data)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.kinds) != len(self.counts):
            raise Fault("nodes", f"has {len(self.counts)} entries, but node has {len(self.kinds)}; one for each kind")
        _check_room("nodes", sum(kind.accelerators * n for kind, n in zip(self.kinds, self.counts, strict=True)))
        if sum(self.counts) > 1 and any(kind.nic is None for kind in self.kinds):
            raise Fault(
                "node", f"{sum(self.counts)} nodes need a nic each to reach one another, e.g. nic: {{kind: ib_hdr}}"
            )
        return self

    @property
    def kinds(self) -> list[NodeSection]:
        """The kinds of node."""
        return self.node if isinstance(self.node, list) else [self.node]

    @property
    def counts(self) -> list[int]:
        """The number of nodes of each kind."""
        return self.nodes if isinstance(self.nodes, list) else [self.nodes]

    def _whole_cluster(self, folder: Path, routing: Routing) -> Cluster:
        function, arguments = lookup.function(FABRICS, self.fabric.kind), self.fabric.parameters()
        wirings = [replace(kind.wiring(), relays=routing.relays) for kind in self.kinds]
        if routing.pxn and not all(_has_rails(one) for one in wirings):
            raise ClusterError("network.pxn: needs nodes with several NICs whose GPUs are joined by NVLink")
        cable, radix = None, DEFAULT_RADIX
        nic = self.kinds[0].nic
        if nic is not None:
            data = _catalogue_link(nic.kind)
            hop = data.switch_latency if data and self.fabric.latency is None else self.fabric.latency
            radix = data.radix if data and data.radix else radix
            cable = cable_of(nic.link(), hop, self.fabric.bandwidth)
        return assemble(
            list(zip(wirings, self.counts, strict=True)),
            lambda network: function(network, **arguments),
            cable,
            radix,
            self.preset or "cluster",
            routing,
        )


class UniformSection(ClusterSection):
    """Each GPU and host has one full-duplex port into a crossbar."""

    preset: Literal["uniform"]
    """uniform: one full-duplex port of each GPU and host into a crossbar. Required."""
    gpus: Count
    """Number of GPUs. Required."""
    hosts: Index = 1
    """Number of hosts, for parameter servers and copies."""
    bandwidth: Bandwidth
    """Bandwidth of a port, one way. Required"""
    latency: Time
    """Latency of a message end to end. Required"""
    accelerator: Gpu = Field(default_factory=lambda: device(GPUS, "unit"))
    """The GPU, a file of topologies/gpus, or a mapping; by default one of unit speed without limits."""

    @model_validator(mode="after")
    def _sane(self) -> Self:
        _check_room("gpus", self.gpus)
        _check_room("hosts", self.hosts)
        return self

    def _whole_cluster(self, folder: Path, routing: Routing) -> Cluster:
        _check_one_path(routing)
        from clustersim.topologies.uniform_and_tree import uniform

        return uniform(self.gpus, self.bandwidth, self.latency, self.hosts, self.accelerator.accelerator())


class TreeSection(ClusterSection):
    """Switches from the root down, *arity* below each switch of a level.

    One bandwidth and latency for all levels, or lists.
    """

    preset: Literal["tree"]
    """tree: switches from the root down. Required."""
    arity: Annotated[list[Count], Field(min_length=1)]
    """Switches below each switch, by level from the root down; the last level has GPUs. Required."""
    bandwidth: Annotated[Bandwidth | list[Bandwidth], one_or_list(Bandwidth)]
    """Bandwidth of a link, one way, of all levels or by level. Required."""
    latency: Annotated[Time | list[Time], one_or_list(Time)]
    """Latency of a link, of all levels or by level. Required."""
    hosts: Index = 1
    """Number of hosts at the root, for parameter servers and copies."""
    accelerator: Gpu = Field(default_factory=lambda: device(GPUS, "unit"))
    """The GPU, a file of topologies/gpus, or a mapping; by default one of unit speed without limits."""

    @model_validator(mode="after")
    def _levels(self) -> Self:
        _check_room("arity", prod(self.arity))
        _check_room("hosts", self.hosts)
        for name in ("bandwidth", "latency"):
            values = getattr(self, name)
            if isinstance(values, list) and len(values) != len(self.arity):
                raise Fault(name, f"has {len(values)} entries for the {len(self.arity)} levels of arity; give one each")
        return self

    def _whole_cluster(self, folder: Path, routing: Routing) -> Cluster:
        _check_one_path(routing)
        from clustersim.topologies.uniform_and_tree import tree

        def levels(value: float | list[float]) -> list[float]:
            return value if isinstance(value, list) else [value] * len(self.arity)

        accelerator = self.accelerator.accelerator()
        return tree(self.arity, levels(self.bandwidth), levels(self.latency), self.hosts, accelerator)


class GraphSection(ClusterSection):
    """A user's own graph."""

    graph: str
    """JSON file of a graph as networkx writes it (node-link data), relative to the scenario. Required."""
    accelerator: Gpu | None = None
    """The GPU, for those of the graph without one of their own."""
    processor: Cpu = Field(default_factory=lambda: device(CPUS, "xeon_gold_6140"))
    """The host processor, for hosts of the graph without one of their own."""

    def _whole_cluster(self, folder: Path, routing: Routing) -> Cluster:
        _check_one_path(routing)
        from clustersim.topologies.graph_file import load

        gpu = self.accelerator.accelerator() if self.accelerator else None
        return load(folder / self.graph, gpu, self.processor.accelerator())


def _form(data: Any) -> str:
    """The tag of the form of *data*."""
    if isinstance(data, ClusterSection):
        return {UniformSection: "of ports", TreeSection: "of switches", GraphSection: "of vertices"}.get(
            type(data), "of nodes"
        )
    if not isinstance(data, Mapping):
        return "of nodes"
    preset = data.get("preset")
    if preset == "uniform":
        return "of ports"
    if preset == "tree":
        return "of switches"
    return "of vertices" if "graph" in data and preset is None else "of nodes"


ClusterSpecification = Annotated[
    ClusterSection,
    Deferred(
        {
            "of nodes": f"{__name__}:NodesSection",
            "of ports": f"{__name__}:UniformSection",
            "of switches": f"{__name__}:TreeSection",
            "of vertices": f"{__name__}:GraphSection",
        },
        _form,
    ),
]
"""The type of a scenario's ``cluster`` field."""


class ClusterHolder(Section):
    """A mapping with the ``cluster`` section alone."""

    cluster: ClusterSpecification


def specification(section: Mapping[str, Any]) -> ClusterSection:
    """Return *section*, validated. Raises `ScenarioError` with every fault."""
    return validated(Document({"cluster": dict(section)}), ClusterHolder).cluster
