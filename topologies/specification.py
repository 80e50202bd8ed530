"""The ``cluster:`` section of a scenario in all its forms: nodes and fabric, uniform, tree, a user's own graph.

Every form has ``build(folder)``, which gives the `simulator.Cluster`; what is left out comes from the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from simulator import lookup
from simulator.cluster import Cluster, Link
from simulator.document import Bandwidth, Count, Document, Fault, Index, Ratio, Section, Time, merged, read, validated
from simulator.errors import ClusterError
from topologies.assembly import assemble, cable_of
from topologies.catalogue import CPUS, GPUS, LINKS, Device, device, known, link, link_data
from topologies.parameters import parameters
from topologies.wiring import Server, Wiring

CLUSTERS, FABRICS, NODES = "topologies.clusters", "topologies.fabrics", "topologies.nodes"

MOST_GPUS = 1_000_000
"""More than any machine has; a graph of them takes a minute and gigabytes."""


def _with_preset(folder: str) -> BeforeValidator:
    """A mapping's *preset*, a file of *folder*, below its other keys; a name alone is a preset."""

    def validate(value: Any) -> Any:
        if isinstance(value, str):
            known(folder, folder.rpartition(".")[2].removesuffix("s"), value)
            return device(folder, value)
        if isinstance(value, dict) and isinstance(value.get("preset"), str):
            known(folder, folder.rpartition(".")[2].removesuffix("s"), value["preset"], "preset")
            base = {k: v for k, v in read(lookup.data_file(folder, value["preset"])).data.items() if k != "sources"}
            return {"name": value["preset"], **merged(Document(base), Document(value)).data}
        return value

    return BeforeValidator(validate)


Gpu = Annotated[Device, _with_preset(GPUS)]
Cpu = Annotated[Device, _with_preset(CPUS)]


class LinkSection(Section):
    """One direction of a link: its kind is enough, if the catalogue has it."""

    kind: str
    bandwidth: Bandwidth | None = None
    latency: Time | None = None

    @model_validator(mode="after")
    def _in_catalogue(self) -> Self:
        if self.bandwidth is None or self.latency is None:
            _known_link(self.kind)
        return self

    def link(self, count: int = 1) -> Link:
        """The link; *count* of them side by side where no bandwidth is given."""
        return link(self.kind, self.bandwidth, self.latency, count)


def _known_link(kind: str) -> None:
    try:
        known(LINKS, "link", kind, "kind")
    except Fault as fault:
        raise Fault("kind", f"{fault.message}; or give it a bandwidth and a latency", fault.hint) from None


class IntraSection(Section):
    """How the GPUs of a node are joined: *shape* is a file of topologies/nodes, further keys are its parameters.

    *bandwidth* is that of all that joins two neighbours (in a hybrid cube mesh or Infinity Fabric, of one link); with
    a kind alone, the links that a GPU has are spread over its neighbours.
    """

    model_config = ConfigDict(extra="allow")

    kind: str | None = None
    shape: str = "full_mesh"
    bandwidth: Bandwidth | None = None
    latency: Time | None = None
    links: Count | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        known(NODES, "node shape", self.shape, "shape")
        if self.links is not None and self.bandwidth is not None:
            raise Fault("links", "is not needed beside bandwidth, which is that of all links between two neighbours")
        if self.kind is not None and (self.bandwidth is None or self.latency is None):
            _known_link(self.kind)
        self.parameters()
        return self

    def parameters(self) -> dict[str, Any]:
        """The arguments of the shape's function."""
        also = ("kind", "shape", "bandwidth", "latency", "links")
        return parameters(lookup.function(NODES, self.shape), self.model_extra or {}, also)


class NodeSection(Section):
    """One kind of node (server)."""

    accelerator: Gpu
    accelerators: Count
    intra: IntraSection = Field(default_factory=lambda: IntraSection(shape="pcie"))
    host: LinkSection | None = None
    processor: Cpu = Field(default_factory=lambda: device(CPUS, "xeon_gold_6140"))
    sockets: Count | None = None
    socket_link: LinkSection | None = None
    pcie_switches: Index = 0
    nics: Count | None = None
    nic: LinkSection | None = None
    nic_bus: LinkSection | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.nics is not None and self.nic is None:
            raise Fault("nics", f"{self.nics} of what kind? Give nic: {{kind: ib_hdr}}, or another link")
        if self.accelerators > 1 and self.intra.shape != "pcie" and self._intra_kind is None:
            raise Fault(("intra",), f"needs a kind, e.g. nvlink3: {self.accelerator.name} has no links of its own")
        try:
            self.wiring()
        except ClusterError as error:
            raise Fault(("intra",) if "intra" in self.model_fields_set else (), str(error)) from None
        return self

    @property
    def _intra_kind(self) -> str | None:
        own = self.accelerator.links.kind if self.accelerator.links else None
        return self.intra.kind or (own if self.intra.shape != "pcie" else None)

    def server(self) -> Server:
        """The server with every default filled in."""
        bus = self.host.link() if self.host else link(self.accelerator.bus or "pcie4")
        own = self.accelerator.links
        kind, intra, links = self._intra_kind, None, self.intra.links
        if kind is not None:
            intra = link(kind, self.intra.bandwidth, self.intra.latency)
            if links is None and self.intra.bandwidth is None and own is not None and own.kind == kind:
                links = own.count
        lanes = self.processor.links
        return Server(
            accelerator=self.accelerator.accelerator(),
            accelerators=self.accelerators,
            processor=self.processor.accelerator(),
            sockets=self.sockets or min(2, self.accelerators),
            bus=bus,
            socket=self.socket_link.link()
            if self.socket_link
            else link(lanes.kind, count=lanes.count)
            if lanes
            else None,
            pcie_switches=self.pcie_switches,
            intra=intra,
            links=links,
            nics=(self.nics or 1) if self.nic else 0,
            nic=self.nic.link() if self.nic else None,
            nic_bus=self.nic_bus.link() if self.nic_bus else None,
        )

    def wiring(self) -> Wiring:
        """The server wired in its shape. Raises `ClusterError` where it does not fit that."""
        function = lookup.function(NODES, self.intra.shape)
        wiring: Wiring = function(self.server(), **self.intra.parameters())
        return wiring


class FabricSection(Section):
    """What joins the NICs: *kind* is a file of topologies/fabrics, further keys are its parameters.

    *bandwidth* and *latency* are those of one cable between two switches (default: bandwidth of a NIC, latency of a
    switch of its kind).
    """

    model_config = ConfigDict(extra="allow")

    kind: str
    bandwidth: Bandwidth | None = None
    latency: Time | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        known(FABRICS, "fabric", self.kind, "kind")
        self.parameters()
        return self

    def parameters(self) -> dict[str, Any]:
        """The arguments of the fabric's function."""
        also = ("kind", "bandwidth", "latency")
        return parameters(lookup.function(FABRICS, self.kind), self.model_extra or {}, also)


class Degradation(Section):
    """*bandwidth* is a factor on the *link* between two vertices, both directions.

    Where the two, of one node, have no link of their own, it is a factor on every link of the way between them.
    """

    link: tuple[str, str]
    bandwidth: Ratio


class ClusterSection(Section):
    """What all forms of the section have in common."""

    degraded: list[Degradation] = Field(default_factory=list)

    def build(self, folder: Path | None = None) -> Cluster:
        """The cluster. Raises `ClusterError` where its parts do not fit together; *folder* is where paths begin."""
        cluster = self._whole_cluster(folder or Path())
        if not self.degraded:
            return cluster
        factors: dict[tuple[str, str], float] = {}
        for entry in self.degraded:
            for ends in _links_between(cluster, *entry.link):
                factors[ends] = factors.get(ends, 1.0) * entry.bandwidth
        return cluster.degraded((a, b, factor) for (a, b), factor in factors.items())

    def _whole_cluster(self, folder: Path) -> Cluster:
        raise NotImplementedError


def _links_between(cluster: Cluster, source: str, target: str) -> list[tuple[str, str]]:
    graph = cluster.graph
    for vertex in (source, target):
        if vertex not in graph:
            near = lookup.nearest(vertex, list(graph))[:4]
            raise ClusterError(f'cluster.degraded: no vertex "{vertex}"; near it are: {", ".join(near)}')
    if not graph.has_edge(source, target) and not graph.has_edge(target, source):
        node = graph.nodes[source].get("node")
        if node is not None and node == graph.nodes[target].get("node"):
            return [cluster.ends[number] for number in cluster.route(source, target)]
    return [(source, target)]


def _one_or_list(value: Any) -> Any:
    if isinstance(value, list) and not value:
        raise ValueError("must have at least one entry")
    return value


class NodesSection(ClusterSection):
    """Nodes and a fabric; lists of both where nodes are of several kinds. *sources* says where each datum is from."""

    preset: str | None = None
    nodes: Annotated[Count | list[Count], BeforeValidator(_one_or_list)] = 1
    node: Annotated[NodeSection | list[NodeSection], BeforeValidator(_one_or_list)]
    fabric: FabricSection = Field(default_factory=lambda: FabricSection(kind="switch"))
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _on_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("preset"), str):
            return data
        known(CLUSTERS, "cluster", data["preset"], "preset")
        return merged(read(lookup.data_file(CLUSTERS, data["preset"])), Document(data)).data

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.kinds) != len(self.counts):
            raise Fault("nodes", f"has {len(self.counts)} entries, but node has {len(self.kinds)}; one for each kind")
        gpus = sum(kind.accelerators * count for kind, count in zip(self.kinds, self.counts, strict=True))
        if gpus > MOST_GPUS:
            raise Fault("nodes", f"{gpus} GPUs in all is absurd; the most that is taken is {MOST_GPUS}")
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
        """How many nodes of each kind."""
        return self.nodes if isinstance(self.nodes, list) else [self.nodes]

    def _whole_cluster(self, folder: Path) -> Cluster:
        function, arguments = lookup.function(FABRICS, self.fabric.kind), self.fabric.parameters()
        wirings = [kind.wiring() for kind in self.kinds]
        cable, radix = None, 40
        nic = self.kinds[0].nic
        if nic is not None:
            latency = self.fabric.latency
            if "." in nic.kind or nic.kind in lookup.names(LINKS):
                data = link_data(nic.kind)
                latency, radix = data.switch_latency if latency is None else latency, data.radix or radix
            cable = cable_of(nic.link(), latency, self.fabric.bandwidth)
        return assemble(
            list(zip(wirings, self.counts, strict=True)),
            lambda network: function(network, **arguments),
            cable,
            radix,
            self.preset or "cluster",
        )


class UniformSection(ClusterSection):
    """Each GPU and host has one full-duplex port into a crossbar."""

    preset: Literal["uniform"]
    gpus: Count
    hosts: Index = 1
    bandwidth: Bandwidth
    latency: Time
    accelerator: Gpu = Field(default_factory=lambda: device(GPUS, "unit"))

    def _whole_cluster(self, folder: Path) -> Cluster:
        from topologies.uniform import uniform

        return uniform(self.gpus, self.bandwidth, self.latency, self.hosts, self.accelerator.accelerator())


class TreeSection(ClusterSection):
    """Switches from the root down, *arity* below each of a level; one bandwidth and latency for all, or a list of each."""

    preset: Literal["tree"]
    arity: Annotated[list[Count], Field(min_length=1)]
    bandwidth: Bandwidth | list[Bandwidth]
    latency: Time | list[Time]
    hosts: Index = 1
    accelerator: Gpu = Field(default_factory=lambda: device(GPUS, "unit"))

    @model_validator(mode="after")
    def _levels(self) -> Self:
        for name in ("bandwidth", "latency"):
            values = getattr(self, name)
            if isinstance(values, list) and len(values) != len(self.arity):
                raise Fault(name, f"has {len(values)} entries for the {len(self.arity)} levels of arity; give one each")
        return self

    def _whole_cluster(self, folder: Path) -> Cluster:
        from topologies.tree import tree

        def levels(value: float | list[float]) -> list[float]:
            return value if isinstance(value, list) else [value] * len(self.arity)

        accelerator = self.accelerator.accelerator()
        return tree(self.arity, levels(self.bandwidth), levels(self.latency), self.hosts, accelerator)


class GraphSection(ClusterSection):
    """A user's own *graph*, networkx node-link data; the devices that name no accelerator have the one given here."""

    graph: str
    accelerator: Gpu | None = None
    processor: Cpu = Field(default_factory=lambda: device(CPUS, "xeon_gold_6140"))

    def _whole_cluster(self, folder: Path) -> Cluster:
        from topologies.graph import load

        gpu = self.accelerator.accelerator() if self.accelerator else None
        return load(folder / self.graph, gpu, self.processor.accelerator())


def _form(data: Any) -> str:
    """The tag of the form that *data* has."""
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
    Annotated[NodesSection, Tag("of nodes")]
    | Annotated[UniformSection, Tag("of ports")]
    | Annotated[TreeSection, Tag("of switches")]
    | Annotated[GraphSection, Tag("of vertices")],
    Discriminator(_form),
]
"""The type of a scenario's ``cluster`` field."""


class _Holder(Section):
    cluster: ClusterSpecification


def specification(section: Mapping[str, Any]) -> ClusterSection:
    """*section*, validated. Raises `ScenarioError` telling every fault."""
    return validated(Document({"cluster": dict(section)}), _Holder).cluster
