"""A transport is a communication library of a given version: what it adds to the wire, and what it has to choose from.

All of it is data, so that a calibration can replace any number. Bandwidths are bytes/s, latencies s. A library chooses
by a model of itself, which need not be true: then it is a transport too, and stands beside what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

from simulator.cluster import Link

NVLINK, PCI, NET = "NVLINK", "PCI", "NET"
"""Classes of hop, as NCCL tells them apart (src/graph/tuning.cc, NCCL_HW_*)."""

_CLASSES = {"nvlink": NVLINK, "infinity_fabric": NVLINK, "pcie": PCI, "upi": PCI, "qpi": PCI, "xgmi": PCI}


@lru_cache(maxsize=256)
def link_class(kind: str) -> str:
    """The class of a link by its kind; what is neither of NVLink's sort nor of PCIe's belongs to the network.

    >>> link_class("nvlink3"), link_class("pcie4"), link_class("ib_hdr")
    ('NVLINK', 'PCI', 'NET')
    """
    return next((name for prefix, name in _CLASSES.items() if kind.startswith(prefix)), NET)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a library wants to know of the group before it chooses.

    *inside*: the class of hop between GPUs of one server, over links of kind *link*; *vendor* of the host's processor,
    ``intel`` or ``amd``; *near*: the GPUs reach their NICs without passing a host; *switched*: they reach each other
    through NVSwitches. *rings*: those that were found, through a switch as many as a GPU has NVLinks.
    """

    ranks: int
    servers: int
    inside: str = NVLINK
    link: str = ""
    vendor: str = "intel"
    near: bool = True
    switched: bool = False
    rings: int = 1


@dataclass(frozen=True, eq=False)
class Transport:
    """What a library adds, each table by what it depends on; what a table does not name adds nothing.

    *algorithms*: collective -> those that ``auto`` chooses among. *believed*: the library's model of itself, by
    which it chooses; None: by what is true. *launch*: on the GPU, for each collective or message, until its kernel
    is at work and after it is done. *base_latency*: (algorithm, protocol) -> once for each collective.
    *hop_latency*: (class of hop, algorithm, protocol) -> for each message. *wired*: classes of hop whose figures
    were measured with the wire in them. *hides*: whether latencies in a ring hide behind its slowest hop; else they
    always add. *fills*: whether time counts in which a chain or a tree is filled with chunks. *chunk_bytes*:
    (algorithm, protocol) -> bytes that a channel passes on at once, and what they are halved to while a channel has
    fewer chunks for each hop of its depth than *chunks_for_depth*; what is not named cuts as its algorithm says.
    *strained*: protocol -> factor on hops inside a server while others go between servers. *plateau*:
    (algorithm, protocol) -> factor on the latency of an all-reduce across servers from *plateau_bytes* per rank.
    *efficiency*: kind or class of link -> share of its bandwidth; *attainable*: kind of link -> bytes/s at most.
    *limits*: where -> bytes/s of all channels of a rank together, on the wire; where is the kind of NVLink in one
    server, else vendor and 2 or 4 servers, or ``any``. *slices*: algorithm -> parts of a chunk that a channel
    passes on one after the other; where channels are the limit, the rounds take a slice's time more than their
    number, for a rank takes no chunk in while it puts out its first. *shares*: (algorithm, protocol, across
    servers) -> share of all this that carries data; *lone_shares*: (algorithm, protocol) -> that among servers of
    fewer than two ranks, where one GPU sends and receives through its NIC. *ceilings*: (algorithm, protocol, where)
    -> bytes/s of data, all channels of a rank. *ring_ceilings*: (algorithm, protocol, kind of NVLink) -> that for
    each ring, in one server, two, and more. *corrections*: (algorithm, protocol) -> factors on that for 64 B, 128 B
    ... of vector. *messages*: the protocols of single messages and of what is made of them, ``direct`` (none named:
    all). *nvlink_only*: protocols that need NVLink inside and NICs near. *blocks*: channels, each a thread block on
    a multiprocessor of its own, for each ring; 0: the host does it all. *channel_bytes*: (algorithm, protocol) ->
    bytes of the vector, and bytes for each rank, that open one more channel. *buffer_bytes*: memory of the GPU for
    each channel of each group. *reorders*: rings follow the hardware, not the order of ranks. *tagged*: receives
    are matched by tag.
    """

    name: str
    version: str = ""
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    believed: Transport | None = None
    protocols: tuple[str, ...] = ("simple",)
    messages: tuple[str, ...] = ()
    launch: float = 0.0
    base_latency: Mapping[tuple[str, str], float] = field(default_factory=dict)
    hop_latency: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    wired: frozenset[str] = frozenset({NVLINK, PCI})
    hides: bool = False
    fills: bool = True
    chunk_bytes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    chunks_for_depth: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    strained: Mapping[str, float] = field(default_factory=dict)
    plateau: Mapping[tuple[str, str], float] = field(default_factory=dict)
    plateau_bytes: float = inf
    efficiency: Mapping[str, float] = field(default_factory=dict)
    attainable: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    slices: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[tuple[str, str, bool], float] = field(default_factory=dict)
    lone_shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    ceilings: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    ring_ceilings: Mapping[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)
    corrections: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    nvlink_only: frozenset[str] = frozenset()
    switch_only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocks: int = 0
    channel_bytes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    buffer_bytes: float = 0.0
    reorders: bool = False
    tagged: bool = True

    def offered(self, algorithm: str, setting: Setting) -> list[str]:
        """The protocols that *algorithm* may use in *setting*; none where it cannot be used at all."""
        if algorithm in self.switch_only:
            switched = setting.switched and setting.servers == 1 and setting.link in self.switch_only[algorithm]
            return [name for name in self.messages if switched]
        names = self.messages if algorithm == "direct" and self.messages else self.protocols
        return [name for name in names if name not in self.nvlink_only or (setting.inside == NVLINK and setting.near)]

    def base(self, algorithm: str, protocol: str) -> float:
        """Seconds that every collective costs; an algorithm that the library has not is charged as its ring."""
        table = self.base_latency
        return self.launch + table.get((algorithm, protocol), table.get(("ring", protocol), 0.0))

    def message(self, wire: float, hop: str, algorithm: str, protocol: str, setting: Setting) -> float:
        """Seconds until a message over a *wire* of that latency is there, its bytes not counted.

        The wire comes on top unless the library's figure was measured with it.
        """
        table = self.hop_latency
        added = table.get((hop, algorithm, protocol), table.get((hop, "ring", protocol), 0.0))
        if hop != NET and setting.servers > 1:
            added *= self.strained.get(protocol, 1.0)
        return max(wire, added) if hop in self.wired else wire + added

    def delayed(self, kind: str, algorithm: str, protocol: str, nbytes: float, setting: Setting) -> float:
        """The factor on all latency of a collective."""
        large = setting.servers > 1 and kind == "all_reduce" and nbytes >= self.plateau_bytes * setting.ranks
        return self.plateau.get((algorithm, protocol), 1.0) if large else 1.0

    def link_efficiency(self, link: Link) -> float:
        """The share of a link's bandwidth that the library gets out of it."""
        share = self.efficiency.get(link.kind, self.efficiency.get(link_class(link.kind), 1.0))
        return min(share, self.attainable.get(link.kind, inf) / link.bandwidth)

    def share(self, algorithm: str, protocol: str, setting: Setting) -> float:
        """The share of that in turn that carries data."""
        across = setting.servers > 1
        if setting.ranks < 2 * setting.servers and (algorithm, protocol) in self.lone_shares:
            return self.lone_shares[algorithm, protocol]
        return self.shares.get((algorithm, protocol, across), self.shares.get(("ring", protocol, across), 1.0))

    def correction(self, algorithm: str, protocol: str, nbytes: float) -> float:
        """The factor on the bandwidth for a vector of *nbytes*: by whole powers of two from 64 B, as NCCL has it."""
        factors = self.corrections.get((algorithm, protocol), ())
        place = max(1, int(nbytes) >> 6).bit_length() - 1
        return factors[place] if place < len(factors) else 1.0

    def pace(self, algorithm: str, rounds: int) -> float:
        """The share of their own rate at which channels get through *rounds* of chunks, the first slice waited for.

        >>> Transport("x", slices={"ring": 2}).pace("ring", 2)
        0.8
        """
        return rounds / (rounds + 1 / self.slices[algorithm]) if rounds and algorithm in self.slices else 1.0

    def chunk(self, algorithm: str, protocol: str, nbytes: float, count: int, depth: int) -> float:
        """Bytes of a chunk in a pipeline of *depth* hops, where the algorithm cuts *count* chunks of *nbytes*.

        >>> key = "tree", "Simple"
        >>> library = Transport("x", chunk_bytes={key: (512e3, 128e3, 32e3)}, chunks_for_depth={key: (8, 1)})
        >>> library.chunk(*key, 1e6, 8, 4), library.chunk(*key, 1e5, 1, 4)
        (128000.0, 32000.0)
        """
        key = algorithm, protocol
        if key not in self.chunk_bytes:
            return nbytes
        chunk, *smaller = self.chunk_bytes[key]
        for least, factor in zip(smaller, self.chunks_for_depth.get(key, ()), strict=False):
            while nbytes * count < factor * depth * chunk and chunk > least:
                chunk /= 2
        return min(chunk, nbytes * count)

    def opened(self, algorithm: str, protocol: str, nbytes: float, ranks: int, most: int) -> int:
        """How many of *most* channels a vector of *nbytes* among *ranks* is worth."""
        fixed, for_each_rank = self.channel_bytes.get((algorithm, protocol), (0.0, 0.0))
        each = fixed + for_each_rank * ranks
        return min(most, max(1, int(nbytes / each))) if each else most

    def ceiling(self, algorithm: str, protocol: str, setting: Setting) -> float:
        """The most data that all channels of a rank carry together, bytes/s."""
        where = setting.link if setting.servers == 1 else f"{setting.vendor} {2 if setting.servers == 2 else 4}"
        limit = min(self.limits.get(place, inf) for place in (where, "any"))
        keys = [(name, protocol, place) for name in (algorithm, "any") for place in (where, "any")]
        most = min(limit * self.share(algorithm, protocol, setting), *(self.ceilings.get(key, inf) for key in keys))
        of_a_ring = self.ring_ceilings.get((algorithm, protocol, setting.link), (inf,))
        return min(most, setting.rings * of_a_ring[min(setting.servers, len(of_a_ring)) - 1])
