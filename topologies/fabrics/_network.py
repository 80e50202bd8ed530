"""The network that a fabric works on: the ports of all NICs, the switches and links that the fabric adds, and the
choice among equal-cost paths.

A fabric is a function ``(network, ...) -> FabricRouter``. It adds switches and links, connects every port to a switch,
and returns a router that computes routes from the structure, so no table of routes is made. Vertices and ports are
numbers. Whole sets of ports are connected at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.hardware.hashing import Indices, Numbering, Numbers, distinct, mixed
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError

Policy = Literal["auto", "adaptive", "ecmp", "static"]


@dataclass(frozen=True, slots=True)
class Port:
    """A NIC's end of the fabric: the *number* of the port, its *nic*, *node* and *rail* (number of the NIC in its
    node).
    """

    number: int
    nic: int
    node: int
    rail: int
    link: Link


@dataclass(frozen=True, eq=False)
class Ports(Sequence[Port]):
    """All ports, in order of their nodes, as arrays: *nic* (a vertex), *node*, *rail*, and *which* of *links*."""

    nic: Indices
    node: Indices
    rail: Indices
    links: tuple[Link, ...]
    which: Indices
    _bandwidths: dict[bytes, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.nic)

    @overload
    def __getitem__(self, number: int) -> Port: ...

    @overload
    def __getitem__(self, number: slice) -> list[Port]: ...

    def __getitem__(self, number: int | slice) -> Port | list[Port]:
        if isinstance(number, slice):
            return [self[place] for place in range(len(self))[number]]
        place = range(len(self))[number]
        link = self.links[self.which[place]]
        return Port(place, int(self.nic[place]), int(self.node[place]), int(self.rail[place]), link)

    def bandwidth(self, ports: Indices) -> float:
        """Return the bandwidth of all *ports* together, bytes/s."""
        which = self.which[ports]
        key = which.tobytes()
        if key not in self._bandwidths:
            each = [link.bandwidth for link in self.links]
            places: list[int] = which.tolist()
            self._bandwidths[key] = sum([each[place] for place in places])
        return self._bandwidths[key]


FabricRouter = Callable[[Port, Port], Sequence[int]]
"""From one port to another: the switches on the route, in order.

A router may have a method ``paths(source, target, connection)``, which returns several routes. Each of them carries an
equal share of the bytes of a connection.
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """Routes through a tree of switches: up to the first common switch, then down.

    *leaf_of*: by port number, the switch that it is connected to. *above*: by switch, the next one up.
    """

    leaf_of: Sequence[int] | Indices
    above: Mapping[int, int]

    def __call__(self, source: Port, target: Port) -> list[int]:
        """Return the switches between two ports."""
        up, down = [int(self.leaf_of[source.number])], [int(self.leaf_of[target.number])]
        while up[-1] != down[-1]:
            up.append(self.above[up[-1]])
            down.append(self.above[down[-1]])
        return up + down[-2::-1]


class Network:
    """*ports* in order of their nodes; *cable*: one link between two switches; *radix*: the ports of a switch.

    Added switches are vertices from number *begin* on. *routing*: how they choose among equal-cost paths.
    """

    def __init__(self, ports: Ports, cable: Link, radix: int, begin: int, routing: Routing | None = None) -> None:
        self.ports, self.cable, self.radix, self.begin = ports, cable, radix, begin
        self.routing = routing or Routing()
        self.switches: list[tuple[str, int]] = []
        self._counts: dict[str, int] = {}
        self._kinds_below: dict[int, set[str]] = {}
        self._links: Numbering[Link] = Numbering(ports.links)
        self._cables: dict[tuple[str, float], int] = {}
        self._added: list[NDArray[np.int32]] = [np.zeros((3, 0), np.int32)]
        self._plugged: list[tuple[Indices, Indices]] = [(np.zeros(0, np.int64),) * 2]

    @property
    def starts(self) -> Indices:
        """The number of the first port of each node, then the number of ports."""
        node = self.ports.node
        return np.r_[0, np.flatnonzero(np.diff(node)) + 1, len(node)] if len(node) else np.zeros(1, np.int64)

    @property
    def nodes(self) -> list[list[Port]]:
        """The ports of each node."""
        return [self.ports[begin:end] for begin, end in pairwise(self.starts.tolist())]

    def switch(self, kind: str = "switch") -> int:
        """Add a switch of *kind* and return the number of its vertex. Switches are numbered within their kind."""
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        self.switches.append((kind, number))
        return self.begin + len(self.switches) - 1

    def plug(self, ports: Sequence[Port] | Indices, switch: int | Indices) -> None:
        """Connect *ports* (ports, or their numbers) by their links to *switch*, or each to its own of several."""
        if not isinstance(ports, np.ndarray):
            ports = np.array([port.number for port in ports], np.int64)
        nics, which, switches = self.ports.nic[ports], self.ports.which[ports], np.broadcast_to(switch, ports.shape)
        kinds, count = [link.kind for link in self.ports.links], len(self.ports.links)
        for pair in distinct(switches * count + which).tolist():
            self._kinds_below.setdefault(pair // count, set()).add(kinds[pair % count])
        self._added += [np.array(column, np.int32) for column in ((nics, switches, which), (switches, nics, which))]
        self._plugged.append((ports, switches))

    @cached_property
    def uplinks(self) -> Numbers | None:
        """By port the switch that it is plugged into. None unless each port has one, and servers no other links."""
        ports, switches = map(np.concatenate, zip(*self._plugged, strict=True))
        from_servers = sum(np.count_nonzero(source < self.begin) for source, _, _ in self._added)
        if from_servers != len(ports) or (np.bincount(ports, minlength=len(self.ports)) != 1).any():
            return None
        found = np.empty(len(ports), np.int32)
        found[ports] = switches
        return found

    def join(self, a: int, b: int, bandwidth: float) -> None:
        """Join two switches, each way, by cables of *bandwidth* in all (bytes/s).

        Cables have the kind of the ports below *a*, or that of the network's cable if these are of several kinds.
        """
        self.join_all([(a, b, bandwidth)])

    def join_all(self, pairs: Iterable[tuple[int, int, float]]) -> None:
        """`join` the two switches of each of *pairs*, in order."""
        added = []
        for a, b, bandwidth in pairs:
            which = self._cable(a, b, bandwidth)
            added += [(a, b, which), (b, a, which)]
        self._added.append(np.array(added, np.int32).reshape(-1, 3).T)

    def _cable(self, a: int, b: int, bandwidth: float) -> int:
        """The number of the link by which *a* is joined with *b*."""
        below = self._kinds_below.get(a, set())
        self._kinds_below.setdefault(b, set()).update(below)
        kind = next(iter(below)) if len(below) == 1 else self.cable.kind
        if (kind, bandwidth) not in self._cables:
            cable = replace(self.cable, kind=kind, bandwidth=bandwidth)
            self._cables[kind, bandwidth] = self._links.number(cable)
        return self._cables[kind, bandwidth]

    @property
    def links(self) -> tuple[tuple[Link, ...], Numbers, Numbers, Numbers]:
        """The distinct links; then the source, target and place among the distinct links of every added link.

        Raises `ClusterError` if two links lead from one vertex to another.
        """
        source, target, which = np.concatenate(self._added, axis=1)
        # ports with one link each have none twice
        checked = slice(None) if self.uplinks is None else (source >= self.begin) & (target >= self.begin)
        pairs = np.sort(source[checked].astype(np.int64) * (self.begin + len(self.switches)) + target[checked])
        twice = pairs[1:][pairs[1:] == pairs[:-1]]
        if len(twice):
            a, b = divmod(int(twice[0]), self.begin + len(self.switches))
            raise ClusterError(f"the fabric joins {self._name(a)} and {self._name(b)} twice; join them by one link")
        return self._links.values, source, target, which

    def _name(self, vertex: int) -> str:
        if vertex < self.begin:
            return f"nic {np.flatnonzero(self.ports.nic == vertex)[0]}" if vertex in self.ports.nic else "a server"
        kind, number = self.switches[vertex - self.begin]
        return f"{kind} {number}"


@dataclass(frozen=True, slots=True)
class Routing:
    """How switches choose among equal-cost paths.

    *policy*: ``adaptive`` spreads packets evenly over all paths. ``ecmp`` hashes each connection (RFC 2992). ``static``
    chooses by the destination: D-mod-K, the routing of InfiniBand's fat trees (Zahavi, "D-Mod-K routing providing
    non-blocking traffic for shift permutations on real life fat trees", 2010). ``auto`` leaves it to the fabric.

    *seed*: of the hash. *queue_pairs*: connections between two devices of a group, which share their bytes evenly.

    In a node. *pxn*: a GPU sends to a GPU of another rail through the GPU of its own node on that rail, over NVLink
    (NCCL's PXN, 2.12). *relays*: GPUs without a common NVLink reach each other through a GPU between them (NCCL's NVB).
    """

    policy: Policy = "auto"
    seed: int = 0
    queue_pairs: int = 1
    pxn: bool = False
    relays: bool = False

    @property
    def separate(self) -> bool:
        """Whether single cables count. Packets that are spread evenly load a bundle of cables as one."""
        return self.policy in ("ecmp", "static")

    def hashes(self, source: int, target: int, connection: int) -> Iterator[int]:
        """Yield a hash of 64 bits for each queue pair from port *source* to port *target*.

        *connection* distinguishes the groups to which the devices belong.
        """
        value = 0
        for part in (self.seed, source, target, connection):
            value = _mixed(value ^ part)
        yield from (_mixed(value ^ number) for number in range(self.queue_pairs))


def digits(number: int, *bases: int) -> list[int]:
    """Return the digits of *number* in mixed radix, least significant first.

    >>> digits(17, 4, 3)
    [1, 1]
    """
    found = []
    for base in bases:
        number, digit = divmod(number, base)
        found.append(digit)
    return found


def _mixed(value: int) -> int:
    return int(mixed(np.array([value & 0xFFFFFFFFFFFFFFFF], np.uint64))[0])
