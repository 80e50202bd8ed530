"""The network of a cluster is what a fabric is given to work on: the ports of all NICs, and switches to be added.

A fabric is a function ``(network, ...) -> Way`` that adds switches and links, plugs every port into a switch, and
returns how a message finds its way: by structure, so that no table of routes is ever made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import networkx as nx

from simulator.cluster import Link


@dataclass(frozen=True, slots=True)
class Port:
    """A NIC's side of the fabric: the *number* of the port, its *nic*, *node* and *rail* (which NIC of its node)."""

    number: int
    nic: str
    node: int
    rail: int
    link: Link


Way = Callable[[Port, Port], Sequence[str]]
"""From one port to another: the switches that are passed, in order."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The way through a tree of switches: up until both ends have one in common, and down.

    *leaf_of* is by number of a port the switch that it is plugged into, *above* by switch the next one up.
    """

    leaf_of: Mapping[int, str]
    above: Mapping[str, str]

    def __call__(self, source: Port, target: Port) -> list[str]:
        """The switches between two ports."""
        up, down = [self.leaf_of[source.number]], [self.leaf_of[target.number]]
        while up[-1] != down[-1]:
            up.append(self.above[up[-1]])
            down.append(self.above[down[-1]])
        return up + down[-2::-1]


class Network:
    """*ports* in order of their nodes; *cable* is one link between two switches, *radix* the ports of a switch."""

    def __init__(self, graph: nx.DiGraph[str], ports: Sequence[Port], cable: Link, radix: int) -> None:
        self.graph, self.ports, self.cable, self.radix = graph, tuple(ports), cable, radix
        self._numbers: Counter[str] = Counter()

    @property
    def nodes(self) -> list[list[Port]]:
        """The ports of each node."""
        return [list(ports) for _, ports in groupby(self.ports, key=lambda port: port.node)]

    def switch(self, kind: str = "switch") -> str:
        """A new switch of *kind*, numbered."""
        vertex = f"{kind} {self._numbers[kind]}"
        self._numbers[kind] += 1
        self.graph.add_node(vertex, kind=kind)
        return vertex

    def plug(self, ports: Sequence[Port], switch: str) -> None:
        """Each of *ports* by its own link into *switch*."""
        self.graph.add_edges_from((port.nic, switch, {"link": port.link}) for port in ports)
        self.graph.add_edges_from((switch, port.nic, {"link": port.link}) for port in ports)

    def join(self, a: str, b: str, bandwidth: float) -> None:
        """Cables of *bandwidth* in all (bytes/s) between two switches, each way."""
        link = replace(self.cable, bandwidth=bandwidth)
        self.graph.add_edge(a, b, link=link)
        self.graph.add_edge(b, a, link=link)
