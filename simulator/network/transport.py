"""A transport is a version of a communication library: the costs that it adds to the links, and its algorithms.

All of it is data, so a calibration can replace any number. Bandwidths are in bytes/s, latencies in s. A library chooses
by a tuning model, which may differ from the times that it takes. That model is a transport too. Costs are by class of
link; the choice depends on the properties of the group of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from math import inf, log2

from clustersim.simulator.hardware.links import ONE_CORE, STORES, TCP, Link
from clustersim.simulator.reading.dataclass import dataclass

NVLINK, PCI, NET = "NVLINK", "PCI", "NET"
"""Link classes, as in NCCL (src/graph/tuning.cc, NCCL_HW_*)."""

MOST_HEADS = 32
"""GPUs of a domain that own a part of a vector which NVSwitches add: NCCL_MAX_NVLS_ARITY (NVIDIA/nccl,
src/include/device.h, 2.30)."""

_CLASSES = {
    **dict.fromkeys(("nvlink", "infinity_fabric", "ici", "neuronlink", "gaudi"), NVLINK),
    **dict.fromkeys(("pcie", "upi", "qpi", "xgmi"), PCI),
}


@lru_cache(maxsize=256)
def link_class(kind: str) -> str:
    """Return the class of links of *kind*. A link that is neither of NVLink's nor of PCIe's type belongs to the
    network.

    >>> link_class("nvlink3"), link_class("pcie4"), link_class("ib_hdr")
    ('NVLINK', 'PCI', 'NET')
    """
    return next((name for prefix, name in _CLASSES.items() if kind.startswith(prefix)), NET)


@dataclass(frozen=True, slots=True)
class GroupProperties:
    """Properties of a group on which a library's choice depends.

    *inside*: class of the links between GPUs of one server, and *link* their kind. *vendor*: of the host's processor,
    ``intel`` or ``amd``. *nic_near*: the route from GPU to NIC passes no host. *switched*: GPUs of a server are joined
    by NVSwitches. *rings*: the number of rings; through a switch the number of NVLinks of a GPU. *nic_pairs*: beside
    each NIC in use there is a GPU where its ring enters and another one where it leaves. *tcp*: whether messages
    between servers go by TCP. *nic*: kind of the links out of a server. *through_host*: routes between GPUs of a server
    pass a host.
    """

    ranks: int
    servers: int
    inside: str = NVLINK
    link: str = ""
    vendor: str = "intel"
    nic_near: bool = True
    switched: bool = False
    rings: int = 1
    nic_pairs: bool = True
    tcp: bool = False
    nic: str = ""
    through_host: bool = False

    @property
    def way(self) -> str:
        """How GPUs of a server that meet at a host reach each other; empty if they do not meet there.

        They write to each other's memory only if they are two and the host is AMD's; else through its memory
        (NVIDIA/nccl, src/graph/paths.cc, ncclTopoCheckP2p).
        """
        if not self.through_host:
            return ""
        return "peers" if self.vendor == "amd" and self.ranks == 2 else "host"

    @property
    def tree_steps(self) -> float:
        """Steps of a tree for each rank of a server, as NCCL counts them to cut LL128's chunks between servers.

        1 + log2 of the servers + a tenth of a server's ranks, over these ranks (src/enqueue.cc, computeColl, v2.14.3).
        """
        each = self.ranks / self.servers
        return (1 + int(log2(self.servers)) + 0.1 * each) / each

    @property
    def head_crossings(self) -> float:
        """What passes the link of a GPU of a server, whose switches add, for each byte/s of bus bandwidth of a head.

        Every GPU sends its vector, and the owner of a part receives it beside the whole: 1 + 1 / h of the vector of h
        owners. Bus bandwidth counts 2 (n - 1) / n of the vector among n ranks.
        """
        heads = min(self.ranks / self.servers, MOST_HEADS)
        return (heads + 1) * self.ranks / (2 * (self.ranks - 1))

    @property
    def same_rings(self) -> bool:
        """Whether all channels have the same ring: through a switch, or with one NIC."""
        return self.rings == 1 or (self.switched and self.servers == 1)


GATHERS = "all_gather", "reduce_scatter", "broadcast"
"""Collectives around a ring whose ranks pass on what they have received, or add to it only once."""

GROUPED = "all_to_all", "gather", "scatter"
"""Collectives that are sends and receives of one group."""


@dataclass(frozen=True, eq=False)
class Transport:
    """The costs that a library adds. Each table is indexed by what its value depends on; a missing entry adds nothing.

    Choice. *algorithms*: collective -> the algorithms of ``auto``. *tuning_model*: the model by which the library
    chooses; None: this transport. *messages*: the protocols of single messages and of ``direct`` (empty: all).
    *nvlink_only*: protocols that need NVLink inside a server and NICs near. *far_nics*: kinds of NVLink of GPUs whose
    rings may use these protocols also where a GPU reaches its NIC through another GPU. *unordered_nics*: kinds of NIC
    that may deliver out of order; only *messages* protocols go over them. *message_bytes*: protocol -> the largest
    message or block of a grouped send that it may carry; the library takes it up to there. *switch_only*: algorithm ->
    kinds of NVLink whose switches it needs. *across_only*: algorithms between servers. *sharp_only*: those that need
    switches of the fabric that add; *sharp*: whether it has them. *chains_by_rank*: whether a chain is judged by
    `chain_estimate`. *reorders*: rings follow the hardware, not the order of ranks. *torus*: chips of a server are
    taken as the torus that their links make. *tagged*: receives are matched by tag.

    Latency. *launch*: for each collective or message, the time on the GPU before its kernel starts and after it ends.
    *handover*: what torch.distributed adds to that, which hands work from the stream of computations to that of the
    library and back by events; benchmarks of the library with a process for each GPU do not have it. *issue*,
    *issue_channel*: host time to launch a collective on one GPU, and for each of its channels; it counts where one
    process drives several GPUs. *base_latency*: (algorithm, protocol) -> once for each collective. *start_latency*:
    (kind of link in a server, algorithm, protocol) -> the same where measured for GPUs with such links. *hop_latency*:
    (link class, or kind of link in a server, algorithm, protocol) -> for each message. *newer_links*: kinds of link
    whose entries there are of newer releases and do not count. *wired*: link classes whose figures include the latency
    of the wire. *overlapped_latency*: whether the slowest hop of a ring overlaps latencies; else they always add.
    *intra_node_penalty*: protocol -> factor on hops inside a server
    while other hops go between servers. *large_message_factor*: (algorithm, protocol) -> factor on the latency of an
    all-reduce across servers from *large_message_bytes* per rank.

    NICs that report a latency. *reporting*: kind of NIC -> what it reports to the library, 0: the latency of its links;
    it adds to a hop, by Simple *trips* times (2 where it has none: once more for the flush). *larger_chunks*:
    (algorithm, protocol) -> factor on chunks that pass such a NIC. *net_overhead*: (vendor of the host's processor,
    protocol) -> s in which a rank's proxy posts the sending or the receipt of a chunk.

    Chunks of chains and trees. *fills*: whether the time to fill a pipeline with chunks counts. *chunk_bytes*:
    (algorithm, protocol) -> bytes that a channel passes on at once, then what they are halved to while a channel has
    fewer chunks for each hop of its depth than *chunks_for_depth*. Without an entry the algorithm cuts the chunks.
    *net_chunk_bytes*, *net_chunks_for_depth*: the same for a hop between servers, where it differs.
    *more_channels*: (kind of link in a server, algorithm, protocol) -> factor on the chunks of all channels together,
    where GPUs with such links open more channels.
    *round_bytes*: (algorithm, protocol) -> bytes that a channel of a ring passes around before it begins with more.
    *lines*: protocol -> bytes of data in a line, which ranks of a ring in one server pass on as soon as it comes.
    *crowding*: (algorithm, protocol) -> share by which starts and hops in a server take longer where blocks have all
    their threads and a second channel is open, as `crowding_factor` says.
    *copies*: (algorithm, protocol) -> passes between the user's and the library's buffers, which fill the pipeline like
    hops. *round_latency*: the same -> seconds for a chunk of each lane in each round. *copy_rate*: (algorithm,
    protocol, kind of NVLink) -> bytes/s at which a rank copies in its own memory, in a server, what grouped sends do
    not overlap: its block to itself, and the first chunks out of the buffers. *grouped_share*: of the rate of links,
    what grouped sends get of them there.

    TCP, on links that carry it. *tcp_share*: share of the bandwidth that is payload; 0: as *efficiency* says.
    *tcp_latency*: s for each message between servers beside the others. *tcp_threads*, *tcp_sockets*: threads of a rank
    that copy to sockets, and connections between two ranks. *blind*: its tuner knows no latency of links.
    *segments*: parts of a ring's round that are under way at once, each sent when the receiver's readiness has arrived;
    0: there is no such exchange.

    Bandwidth of links. *efficiency*: kind or class of link -> share of its bandwidth. *attainable*: kind of link ->
    bytes/s at most, or "kind by way" where GPUs reach each other by the `GroupProperties.way`. *limits*: where ->
    bytes/s of all channels of a rank together, on the wire. "Where" is the kind of NVLink in one server, else vendor
    and 2 or 4 servers, or ``any``.

    Bandwidth of data. *shares*: (algorithm, protocol, across servers) -> share of the link bandwidth that carries data.
    *gather_shares*: (algorithm, protocol) -> the same for `GATHERS` within a server. *single_gpu_shares*: (algorithm,
    protocol) -> the same on servers with fewer than two ranks, where one GPU sends and receives through its NIC.
    *ceilings*: (algorithm, protocol, where) -> bytes/s of data, all channels of a rank; those of an algorithm by the
    kind of NVLink also hold across servers, whose rings and trees pass the same links.
    *ring_ceilings*: (algorithm, protocol, kind of NVLink) -> the same for each ring, in one server, two, and more.
    *head_ceilings*: the same keys -> bus bandwidth, bytes/s, for each GPU of a server that owns a part of the vector
    which switches add, in two servers, and in more.
    *corrections*: (algorithm, protocol) -> factors on that for vectors of 64 B, 128 B ... *slices*: algorithm -> parts
    of a chunk that a channel passes on one after the other. Where channels are the limit, the rounds take longer by the
    time of one slice, because a rank receives no chunk while it sends its first.

    Resources. *blocks*: channels for each ring, each a thread block on a multiprocessor of its own; 0: the host does
    the work. *channel_bytes*: (algorithm, protocol) -> bytes of the vector, and bytes for each rank, that open one more
    channel. *buffer_bytes*: GPU memory for each channel of each group.
    """

    name: str
    version: str = ""
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tuning_model: Transport | None = None
    protocols: tuple[str, ...] = ("simple",)
    messages: tuple[str, ...] = ()
    launch: float = 0.0
    handover: float = 0.0
    issue: float = 0.0
    issue_channel: float = 0.0
    base_latency: Mapping[tuple[str, str], float] = field(default_factory=dict)
    start_latency: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    hop_latency: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    newer_links: frozenset[str] = frozenset()
    reporting: Mapping[str, float] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)
    larger_chunks: Mapping[tuple[str, str], float] = field(default_factory=dict)
    net_overhead: Mapping[tuple[str, str], float] = field(default_factory=dict)
    wired: frozenset[str] = frozenset({NVLINK, PCI})
    overlapped_latency: bool = False
    fills: bool = True
    round_latency: Mapping[tuple[str, str], float] = field(default_factory=dict)
    round_bytes: Mapping[tuple[str, str], float] = field(default_factory=dict)
    lines: Mapping[str, float] = field(default_factory=dict)
    crowding: Mapping[tuple[str, str], float] = field(default_factory=dict)
    copies: Mapping[tuple[str, str], int] = field(default_factory=dict)
    copy_rate: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    grouped_share: float = 1.0
    chunk_bytes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    chunks_for_depth: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    more_channels: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    net_chunk_bytes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    net_chunks_for_depth: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    intra_node_penalty: Mapping[str, float] = field(default_factory=dict)
    large_message_factor: Mapping[tuple[str, str], float] = field(default_factory=dict)
    large_message_bytes: float = inf
    tcp_share: float = 0.0
    tcp_latency: float = 0.0
    tcp_threads: int = 1
    tcp_sockets: int = 1
    blind: bool = False
    segments: int = 0
    efficiency: Mapping[str, float] = field(default_factory=dict)
    attainable: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    slices: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[tuple[str, str, bool], float] = field(default_factory=dict)
    gather_shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    single_gpu_shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    net_shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    head_ceilings: Mapping[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)
    ceilings: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    ring_ceilings: Mapping[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)
    corrections: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    nvlink_only: frozenset[str] = frozenset()
    far_nics: frozenset[str] = frozenset()
    unordered_nics: frozenset[str] = frozenset()
    message_bytes: Mapping[str, float] = field(default_factory=dict)
    chains_by_rank: bool = False
    switch_only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    across_only: frozenset[str] = frozenset()
    sharp_only: frozenset[str] = frozenset()
    sharp: bool = False
    blocks: int = 0
    channel_bytes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    buffer_bytes: float = 0.0
    reorders: bool = False
    torus: bool = False
    tagged: bool = True

    def usable_protocols(self, algorithm: str, group: GroupProperties) -> list[str]:
        """Return the protocols that *algorithm* may use in *group*; empty if the algorithm cannot be used."""
        if algorithm in self.switch_only or algorithm in self.across_only:
            return self._unlimited(self.messages) if self._has_switches(algorithm, group) else []
        names = self.messages if algorithm == "direct" and self.messages else self.protocols
        if group.nic in self.unordered_nics:
            return [name for name in self._unlimited(names) if name in self.messages]
        paired = algorithm != "ring" or group.nic_pairs or group.link in self.far_nics
        near = group.inside == NVLINK and group.nic_near and paired
        return [name for name in names if near or name not in self.nvlink_only]

    def _unlimited(self, protocols: Sequence[str]) -> list[str]:
        return [name for name in protocols if name not in self.message_bytes]

    def _has_switches(self, algorithm: str, group: GroupProperties) -> bool:
        """Whether *group* and its fabric have the switches that *algorithm* needs."""
        kinds = self.switch_only.get(algorithm)
        inside = kinds is None or (group.switched and group.link in kinds)
        across = (group.servers > 1) == (algorithm in self.across_only)
        return inside and across and (self.sharp or algorithm not in self.sharp_only)

    def needs(self, algorithm: str) -> str:
        """Return what a group must have for *algorithm*, for an error message."""
        kinds = " or ".join(self.switch_only.get(algorithm, ()))
        behind = f" behind switches of {kinds}" if kinds else ""
        if algorithm not in self.across_only:
            return f"GPUs of one server{behind}"
        return f"GPUs of several servers{behind}" + (
            ", and network.sharp: true" if algorithm in self.sharp_only else ""
        )

    def sized(self, protocols: Sequence[str], nbytes: float) -> list[str]:
        """Return those of *protocols* that carry messages of *nbytes*: those for small ones if there are any for it.

        >>> library = Transport("x", message_bytes={"LL": 16384})
        >>> library.sized(("LL", "Simple"), 1e3), library.sized(("LL", "Simple"), 1e6)
        (['LL'], ['Simple'])
        """
        small = [name for name in protocols if nbytes <= self.message_bytes.get(name, -1.0)]
        return small or self._unlimited(protocols)

    @cached_property
    def _with_latencies(self) -> frozenset[str]:
        tables = (self.base_latency, self.start_latency, self.hop_latency)
        return frozenset(key[-2] for table in tables for key in table)

    def latencies_of(self, algorithm: str) -> str:
        """Return the algorithm whose latencies *algorithm* has: its own, or the ring's if none are known of it.

        >>> library = Transport("x", base_latency={("ring", "LL"): 5e-6, ("tree", "LL"): 6e-6})
        >>> library.latencies_of("tree"), library.latencies_of("mine.xml")
        ('tree', 'ring')
        """
        return algorithm if algorithm in self._with_latencies else "ring"

    def base(self, algorithm: str, protocol: str, link: str = "", crowded: float = 1.0) -> float:
        """Return the seconds that every collective costs among GPUs joined by *link*, a kind. *crowded*: the
        `crowding_factor` of its vector.

        An algorithm without an entry costs as much as the ring.
        """
        table = self.base_latency
        known = table.get((algorithm, protocol), table.get(("ring", protocol), 0.0))
        if link not in self.newer_links:
            known = self.start_latency.get((link, algorithm, protocol), known)
        return self.launch + self.handover + crowded * known

    def crowding_factor(self, algorithm: str, protocol: str, nbytes: float, ranks: int) -> float:
        """Return the factor on latencies in a server for a vector of *nbytes* among *ranks*: 1 with a quarter of the
        threads of a block, in full from a second channel on.

        >>> library = Transport("x", channel_bytes={("ring", "LL"): (0, 4096)}, crowding={("ring", "LL"): 0.2})
        >>> [round(library.crowding_factor("ring", "LL", 2 * size, 2), 2) for size in (1024, 4096, 8192)]
        [1.0, 1.12, 1.2]
        """
        most = self.crowding.get((algorithm, protocol), 0.0)
        fixed, for_each_rank = self.channel_bytes.get((algorithm, protocol), (0.0, 0.0))
        opened = nbytes / ((fixed + for_each_rank * ranks) or inf)
        return 1 + most * min(1.0, max(0.0, (log2(opened) + 1.5) / 2.5)) if most and opened else 1.0

    def message(self, wire: float, hop: str, algorithm: str, protocol: str, group: GroupProperties) -> float:
        """Return the seconds of latency of one message over links of latency *wire* (s).

        The wire adds to the library's figure unless that figure includes it.
        """
        table = self.hop_latency
        of_link = hop == group.inside and group.link not in self.newer_links
        measured = table.get((group.link, algorithm, protocol)) if of_link else None
        if measured is not None:
            return measured
        added = table.get((hop, algorithm, protocol), table.get((hop, "ring", protocol), 0.0))
        if hop == NET and group.nic in self.reporting:
            trips = self.trips.get(group.nic, 2) if protocol == "Simple" else 1
            return added + (self.reporting[group.nic] or wire) * trips
        if hop == NET and group.tcp:
            wire, added = 0.0 if self.blind else wire, added + self.tcp_latency
        if hop != NET and group.servers > 1:
            added *= self.intra_node_penalty.get(protocol, 1.0)
        return max(wire, added) if hop in self.wired else wire + added

    def chain_estimate(self, algorithm: str, protocol: str, group: GroupProperties) -> float:
        """Return the seconds of latency by which NCCL judges a broadcast or a reduction around rings.

        One hop if all rings are equal, else one for each rank, with Simple as long as a tree's
        (src/graph/tuning.cc, ncclTopoTuneModel).
        """
        hop = NET if group.servers > 1 else group.inside
        if group.same_rings:
            return self.hop_latency.get((hop, algorithm, protocol), 0.0)
        slow = "tree" if protocol == "Simple" else algorithm
        return group.ranks * self.hop_latency.get((hop, slow, protocol), 0.0)

    def latency_factor(self, kind: str, algorithm: str, protocol: str, nbytes: float, group: GroupProperties) -> float:
        """Return the factor on all latency of a collective."""
        large = group.servers > 1 and kind == "all_reduce" and nbytes >= self.large_message_bytes * group.ranks
        return self.large_message_factor.get((algorithm, protocol), 1.0) if large else 1.0

    def link_efficiency(self, link: Link, way: str = "") -> float:
        """Return the share of a link's bandwidth that the library reaches; all of that of memory and drives.

        *way*: how GPUs that are joined by such links reach each other.
        """
        if link.kind in STORES:
            return 1.0
        share = self.efficiency.get(link.kind, self.efficiency.get(link_class(link.kind), 1.0))
        if link.protocol == TCP and self.tcp_share:
            share = min(self.tcp_share, self.tcp_threads * ONE_CORE / link.bandwidth)
        most = self.attainable.get(link.kind, inf)
        return min(share, self.attainable.get(f"{link.kind} by {way}", most) / link.bandwidth)

    def share(self, kind: str, algorithm: str, protocol: str, group: GroupProperties) -> float:
        """Return the share of the bandwidth on the link that carries data."""
        across = group.servers > 1
        if not across and kind in GATHERS and (algorithm, protocol) in self.gather_shares:
            return self.gather_shares[algorithm, protocol]
        if group.ranks < 2 * group.servers and (algorithm, protocol) in self.single_gpu_shares:
            return self.single_gpu_shares[algorithm, protocol]
        return self.shares.get((algorithm, protocol, across), self.shares.get(("ring", protocol, across), 1.0))

    def net_share(self, algorithm: str, protocol: str, share: float) -> float:
        """Return the `share` on the links that do not join GPUs of a server; by default as on those, *share*."""
        return self.net_shares.get((algorithm, protocol), share)

    def link_share(self, kind: str, group: GroupProperties) -> float:
        """Return the share of its rate at which a link carries a collective *kind*: the channels' limits are apart."""
        return self.grouped_share if kind in GROUPED and group.inside == NVLINK and group.servers == 1 else 1.0

    def correction(self, algorithm: str, protocol: str, nbytes: float) -> float:
        """Return the factor on the bandwidth for a vector of *nbytes*: by whole powers of two from 64 B, as in NCCL."""
        factors = self.corrections.get((algorithm, protocol), ())
        place = max(1, int(nbytes) >> 6).bit_length() - 1
        return factors[place] if place < len(factors) else 1.0

    def pipeline_share(self, algorithm: str, rounds: int) -> float:
        """Return the share of their rate that channels reach over *rounds* of chunks, because of the wait for the first
        slice.

        >>> Transport("x", slices={"ring": 2}).pipeline_share("ring", 2)
        0.8
        """
        return rounds / (rounds + 1 / self.slices[algorithm]) if rounds and algorithm in self.slices else 1.0

    def chunk(
        self,
        algorithm: str,
        protocol: str,
        nbytes: float,
        depth: float,
        *,
        net: bool = False,
        nic: str = "",
        link: str = "",
    ) -> float:
        """Return the bytes of a chunk of a channel with *nbytes* in a pipeline of *depth* hops.

        *net*: on a hop between servers, for which *depth* is `GroupProperties.tree_steps`. *nic*: kind of NIC that the
        pipeline passes; *link*: kind of the links inside a server.

        >>> key = "tree", "Simple"
        >>> library = Transport("x", chunk_bytes={key: (512e3, 128e3, 32e3)}, chunks_for_depth={key: (8, 1)})
        >>> library.chunk(*key, 8e6, 4), library.chunk(*key, 1e5, 4)
        (128000.0, 32000.0)
        """
        key = algorithm, protocol
        sizes, factors = self.chunk_bytes, self.chunks_for_depth
        if net:
            sizes, factors = self.net_chunk_bytes, self.net_chunks_for_depth
        wider = 1.0 if net else self.more_channels.get((link, *key), 1.0)
        chunk, *smaller = [wider * size for size in sizes[key]]
        if nic in self.reporting:
            chunk *= self.larger_chunks.get(key, 1.0)
        for least, factor in zip(smaller, factors.get(key, ()), strict=False):
            while nbytes < factor * depth * chunk and chunk > least:
                chunk /= 2
        return min(chunk, nbytes)

    def post_seconds(self, protocol: str, group: GroupProperties) -> float:
        """Return the seconds of posting the sending or the receipt of a chunk; 0 where NICs report no latency."""
        return self.net_overhead.get((group.vendor, protocol), 0.0) if group.nic in self.reporting else 0.0

    def host_seconds(self, ranks: int, channels: float) -> float:
        """Return the seconds in which one process launches a collective of *channels* on *ranks* GPUs in turn."""
        return ranks * (self.issue + channels * self.issue_channel)

    def channels_used(self, algorithm: str, protocol: str, nbytes: float, ranks: int, most: int) -> int:
        """Return the number of channels, out of *most*, for a vector of *nbytes* among *ranks*."""
        fixed, for_each_rank = self.channel_bytes.get((algorithm, protocol), (0.0, 0.0))
        each = fixed + for_each_rank * ranks
        return min(most, max(1, int(nbytes / each))) if each else most

    def ceiling(self, kind: str, algorithm: str, protocol: str, group: GroupProperties) -> float:
        """Return the most data (bytes/s) that all channels of a rank carry together."""
        where = group.link if group.servers == 1 else f"{group.vendor} {2 if group.servers == 2 else 4}"
        limit = min(self.limits.get(place, inf) for place in (where, "any"))
        keys = [(name, protocol, place) for name in (algorithm, "any") for place in (where, "any")]
        keys.append((algorithm, protocol, group.link))
        most = min(limit * self.share(kind, algorithm, protocol, group), *(self.ceilings.get(key, inf) for key in keys))
        of_a_ring = self.ring_ceilings.get((algorithm, protocol, group.link), (inf,))
        of_a_head = self.head_ceilings.get((algorithm, protocol, group.link), (inf,))
        return min(
            most,
            group.rings * of_a_ring[min(group.servers, len(of_a_ring)) - 1],
            group.head_crossings * of_a_head[min(group.servers - 1, len(of_a_head)) - 1],
        )
