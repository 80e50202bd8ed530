"""The sections of a scenario for nodes and fabrics. The catalogue provides the defaults."""

from dataclasses import replace
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from clustersim.simulator.hardware.links import NVME, TCP, Link
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.document import Document, merged
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.reading.names_and_parameters import parameters
from clustersim.simulator.reading.quantities import Bandwidth, BelongsTo, Count, Index, Section, Size, Time
from clustersim.simulator.reading.validation import Fault
from clustersim.topologies.catalogue import CPUS, GPUS, LINKS, Device, LinkKind, described, device, known, link
from clustersim.topologies.nodes._server import Drives, Server, Wiring

FABRICS, NODES = "clustersim.topologies.fabrics", "clustersim.topologies.nodes"

MOST_PARTS = 16_384
"""GPUs, NICs or PCIe switches of one node: beyond the 9,216 chips of the largest torus built (a pod of TPU v7)."""


def _with_preset(folder: str) -> BeforeValidator:
    """Validator: the keys of a mapping override those of its *preset*, a file of *folder*. A name alone is a preset."""

    what = {GPUS: "GPU", CPUS: "processor"}[folder]

    def validate(value: Any) -> Any:
        if isinstance(value, str):
            known(folder, what, value)
            return device(folder, value)
        if isinstance(value, dict) and isinstance(value.get("preset"), str):
            known(folder, what, value["preset"], "preset")
            base = {key: datum for key, datum in described(folder, value["preset"]).data.items() if key != "sources"}
            return merged(Document(base), Document(value)).data
        return value

    return BeforeValidator(validate)


def _schema(folder: str) -> WithJsonSchema:
    names = {"type": "string", "examples": lookup.names(folder)}
    return WithJsonSchema({"anyOf": [names, {"type": "object"}]})


Gpu = Annotated[Device, _with_preset(GPUS), _schema(GPUS)]
"""A file of topologies/gpus, or a mapping."""
Cpu = Annotated[Device, _with_preset(CPUS), _schema(CPUS)]
"""A file of topologies/cpus, or a mapping."""


class LinkSection(Section):
    """One direction of a link. The kind suffices if the catalogue has it."""

    kind: LinkKind = Field(default="", validate_default=True)
    """A link of the catalogue (clustersim list links), or any word of your own beside a bandwidth and a latency.
    Required."""
    bandwidth: Bandwidth | None = None
    """Bandwidth, one way; by default that of the catalogue."""
    latency: Time | None = None
    """Latency of the hardware; by default that of the catalogue."""

    @field_validator("kind", mode="before")
    @classmethod
    def _named(cls, kind: Any) -> Any:
        if kind in ("", None):
            kinds = ", ".join(lookup.names(LINKS))
            own = "or, beside a bandwidth and a latency, any word of your own, e.g. rdma or tcp"
            raise PydanticCustomError("missing", "is required", {"needs": f"one of {kinds}; {own}"})
        return kind

    @model_validator(mode="after")
    def _in_catalogue(self) -> Self:
        if self.bandwidth is None or self.latency is None:
            _known_link(self.kind)
        return self

    def link(self, count: int = 1) -> Link:
        """Return the link, or *count* parallel links if no bandwidth is given."""
        return link(self.kind, self.bandwidth, self.latency, count)


class NicSection(LinkSection):
    """The link of a NIC to the network, one direction."""

    protocol: Literal["rdma", "tcp"] = "rdma"
    """rdma: NICs read and write memory; tcp: the operating system copies, with its latency and the limits of a core and
    of a connection."""
    stream_bandwidth: Annotated[Bandwidth | None, BelongsTo("protocol", "tcp")] = None
    """Most that one TCP connection carries, e.g. 5 Gb/s between instances of AWS outside a placement group."""

    @model_validator(mode="after")
    def _of_tcp(self) -> Self:
        if self.protocol == "tcp" and self.kind.startswith(("ib_", "slingshot", "efa")):
            raise Fault("protocol", f"tcp over {self.kind} is not modelled; take a NIC of Ethernet, e.g. eth_100")
        return self

    def link(self, count: int = 1) -> Link:
        """Return the link, or *count* parallel links if no bandwidth is given."""
        plain = super().link(count)
        if self.protocol == "rdma":
            return plain
        return replace(plain, protocol=TCP, stream=self.stream_bandwidth or inf)


def _known_link(kind: str) -> None:
    try:
        known(LINKS, "link", kind, "kind")
    except Fault as fault:
        raise Fault("kind", f"{fault.message}; or give it a bandwidth and a latency", fault.hint) from None


class IntraSection(Section):
    """The links between the GPUs of a node. *shape* is a file of topologies/nodes; further keys are its parameters.

    *bandwidth* is that of all links between two neighbours (in a hybrid cube mesh or Infinity Fabric, of one link).
    With a kind alone, the links of a GPU are spread over its neighbours.
    """

    model_config = ConfigDict(extra="allow")

    kind: LinkKind | None = None
    """Kind of the links between the GPUs of a node (clustersim list links); by default that of the GPU."""
    shape: str = "full_mesh"
    """How the GPUs are joined, a file of topologies/nodes; without a section: over PCIe."""
    bandwidth: Bandwidth | None = None
    """Bandwidth of all links between two neighbours, one way; by default the GPU's links are spread over its
    neighbours."""
    latency: Time | None = None
    """Latency of a link; by default that of the catalogue."""
    links: Count | None = None
    """Links of each GPU; by default those of its data sheet."""

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
        """Return the arguments of the shape's function."""
        also = ("kind", "shape", "bandwidth", "latency", "links")
        return parameters(lookup.function(NODES, self.shape), self.model_extra or {}, also)


class DrivesSection(Section):
    """NVMe drives of a node, over which data are striped."""

    count: Count = 1
    """Drives of a node."""
    read: Bandwidth
    """Bandwidth at which one drive is read. Required."""
    write: Bandwidth
    """Bandwidth at which one drive is written. Required."""
    capacity: Size
    """Bytes of one drive. Required."""

    def drives(self) -> Drives:
        """Return all drives together. Their latency is small beside the time of megabytes."""
        read, write = (Link(NVME, bandwidth * self.count, 0.0) for bandwidth in (self.read, self.write))
        return Drives(read, write, self.capacity * self.count)


class NodeSection(Section):
    """One kind of node (server)."""

    accelerator: Gpu
    """The GPU, a file of topologies/gpus, or a mapping. Required."""
    accelerators: Count
    """GPUs of a node. Required."""
    intra: IntraSection = Field(default_factory=lambda: IntraSection(shape="pcie"))
    """The links between the GPUs of a node; by default the PCIe tree."""
    host: LinkSection | None = None
    """The link from a GPU to its host; by default the GPU's bus."""
    processor: Cpu = Field(default_factory=lambda: device(CPUS, "xeon_gold_6140"))
    """The host processor, one socket, a file of topologies/cpus, or a mapping."""
    sockets: Count | None = None
    """Sockets of a node; by default 2, or 1 for one GPU."""
    socket_link: LinkSection | None = None
    """The link between two sockets; by default that of the processor."""
    pcie_switches: Index = 0
    """PCIe switches between GPUs and sockets; 0: none."""
    pcie_roots: Index = 0
    """PCIe switches of an upper tier, each with one link to a socket, that the pcie_switches share; 0: none."""
    nics: Count | None = None
    """NICs of a node; by default 1 if there is a nic."""
    nic: NicSection | None = None
    """The link of a NIC to the network; nodes without one cannot reach each other."""
    nic_bus: LinkSection | None = None
    """The link from a NIC to its host or switch; by default the host's."""
    nvme: DrivesSection | None = None
    """NVMe drives, to which states may be offloaded."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name in ("accelerators", "sockets", "pcie_switches", "pcie_roots", "nics"):
            if (getattr(self, name) or 0) > MOST_PARTS:
                raise Fault(
                    name, f"{getattr(self, name)} in one node is absurd; the most that is taken is {MOST_PARTS}"
                )
        if self.pcie_roots > self.pcie_switches:
            raise Fault("pcie_roots", f"{self.pcie_roots} for {self.pcie_switches} pcie_switches below; give fewer")
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
        """Return the server with every default filled in."""
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
            pcie_roots=self.pcie_roots,
            intra=intra,
            links=links,
            nics=(self.nics or 1) if self.nic else 0,
            nic=self.nic.link() if self.nic else None,
            nic_bus=self.nic_bus.link() if self.nic_bus else None,
            drives=self.nvme.drives() if self.nvme else None,
        )

    def wiring(self) -> Wiring:
        """Return the server wired in its shape. Raises `ClusterError` if the server does not fit the shape."""
        function = lookup.function(NODES, self.intra.shape)
        wiring: Wiring = function(self.server(), **self.intra.parameters())
        return wiring


class FabricSection(Section):
    """The network between NICs."""

    model_config = ConfigDict(extra="allow")

    kind: str
    """The network's shape, a file of topologies/fabrics; further keys are its parameters."""
    bandwidth: Bandwidth | None = None
    """Bandwidth of a cable between two switches, one way; by default that of a NIC."""
    latency: Time | None = None
    """Latency of a cable between two switches; by default that of a switch of the NIC's kind."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        known(FABRICS, "fabric", self.kind, "kind")
        self.parameters()
        return self

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the fabric's function."""
        also = ("kind", "bandwidth", "latency")
        return parameters(lookup.function(FABRICS, self.kind), self.model_extra or {}, also)
