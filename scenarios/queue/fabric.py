"""The fabric as the scheduler sees it: nodes below leaves, leaves below groups of leaves, and which nodes are free.

Sets of nodes have a *form*: two sets with equal forms lie alike, so that a job takes the same time on either. Switches
that are joined to the same switches above are alike, as they are in fat trees and rails. Where no level joins all
below it (torus, dragonfly, a graph), the nodes themselves are the form, and only equal nodes are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import chain

from clustersim.scenarios.build.node_placement import Node, chosen_nodes, leaves_of
from clustersim.scenarios.specification.queue import QueuePlacement
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.dataclass import dataclass

Uplinks = frozenset[tuple[int, int]]
"""Groups (level, number) with nodes of a job inside and outside: it uses the links from them upwards."""


@dataclass(frozen=True)
class Fabric:
    """The *nodes* of a cluster by number, with the number of their *gpus*.

    *groups*: for each level from the leaves up, the group of each member of the level below. *labels*: for each level
    from the nodes up, a number that is equal for members with equal links and GPUs.
    """

    nodes: tuple[Node, ...]
    gpus: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[int, ...], ...]
    _interned: dict[object, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def joined(self) -> bool:
        """True if the topmost level is one group."""
        return len(self.labels[-1]) == 1

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the nodes below each leaf."""
        found: dict[int, list[int]] = {}
        for node, leaf in enumerate(self.groups[0]):
            found.setdefault(leaf, []).append(node)
        return tuple(map(tuple, found.values()))

    def uplinks(self, nodes: Iterable[int]) -> Uplinks:
        """Return the groups of which *nodes* use the links upwards."""
        found: set[tuple[int, int]] = set()
        members = set(nodes)
        for level, parents in enumerate(self.groups):
            members = {parents[one] for one in members}
            if len(members) == 1:
                break
            found |= {(level, one) for one in members}
        else:
            found.add((len(self.groups), 0))
        return frozenset(found)

    def spread(self, nodes: Iterable[int]) -> tuple[int, int]:
        """Return how many levels of switches *nodes* use, and how many of them one leaf has at most, to a factor of 2.

        What a job sends over the links of a leaf grows with its nodes there.
        """
        members, crossed = list(nodes), 0
        most = max(Counter(self.groups[0][node] for node in members).values())
        for parents in self.groups:
            members = list({parents[one] for one in members})
            if len(members) == 1:
                break
            crossed += 1
        return crossed, most.bit_length()

    def form(self, *several: Iterable[int]) -> int:
        """Return a number that is equal for sets of nodes (one for each job) that lie alike."""
        members: dict[int, int] = {}
        for job, nodes in enumerate(several):
            members |= {node: self._intern(("node", self.labels[0][node], job)) for node in nodes}
        for level, parents in enumerate(self.groups):
            below: dict[int, list[int]] = {}
            for member, value in members.items():
                below.setdefault(parents[member], []).append(value)
            labels = self.labels[level + 1]
            members = {group: self._intern((labels[group], *sorted(values))) for group, values in below.items()}
        return next(iter(members.values())) if self.joined else self._intern(("exact", *sorted(members.items())))

    def _intern(self, key: object) -> int:
        return self._interned.setdefault(key, len(self._interned))


def fabric_of(cluster: Cluster) -> Fabric:
    """Return the fabric of *cluster*."""
    switches = leaves_of(cluster)
    nodes = tuple(switches)
    above: dict[str, set[str]] = {}
    links: dict[str, list[str]] = {}
    for link, (source, target) in zip(cluster.links, cluster.ends, strict=True):
        above.setdefault(source, set()).add(target)
        links.setdefault(source, []).append(f"{link.kind} {link.bandwidth} {link.latency}")
    devices: dict[Node, list[str]] = {}
    for gpu in cluster.gpus:
        devices.setdefault(cluster.node_of(gpu), []).append(gpu)
    interned: dict[object, int] = {}

    def label(vertices: Iterable[str], *more: object) -> int:
        key = tuple(sorted(text for vertex in vertices for text in links.get(vertex, ()))), *more
        return interned.setdefault(key, len(interned))

    inside = {name for name in above if _in_node(cluster, name)}
    labels = [tuple(label(own, str(cluster.count(own))) for own in devices.values())]
    groups: list[tuple[int, ...]] = []
    members, seen = [switches[node] or frozenset([f"node {node}"]) for node in nodes], set(inside)
    # a level without switches above joins nothing
    while all(members):
        distinct = list(dict.fromkeys(members))
        groups.append(tuple(distinct.index(one) for one in members))
        labels.append(tuple(label(one) for one in distinct))
        if len(distinct) == 1:
            break
        seen |= set(chain.from_iterable(distinct))
        members = [frozenset(chain.from_iterable(above.get(one, ()) for one in own)) - seen for own in distinct]
    return Fabric(nodes, tuple(map(len, devices.values())), tuple(groups), tuple(labels))


def _in_node(cluster: Cluster, name: str) -> bool:
    """Return whether the vertex *name* is a part of a node, or a device."""
    return name in cluster.devices or cluster.vertices.node_of(cluster.vertex(name)) != name


@dataclass
class FreeNodes:
    """The free nodes of *fabric*, which jobs take by the rule *placement* and give back."""

    fabric: Fabric
    placement: QueuePlacement
    free: set[int] = field(init=False)
    _leaves: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.free = set(range(len(self.fabric.nodes)))
        self._leaves = self.fabric.leaves
        self.largest_leaf = max(map(len, self._leaves))

    def counts(self) -> list[int]:
        """Return the number of free nodes below each leaf."""
        return self.count(self.free)

    def count(self, nodes: Iterable[int]) -> list[int]:
        """Return the number of *nodes* below each leaf."""
        found = [0] * len(self._leaves)
        for node in nodes:
            found[self.fabric.groups[0][node]] += 1
        return found

    def least_leaves(self, count: int) -> int:
        """Return on how few leaves *count* nodes of the empty cluster lie."""
        sizes = sorted(map(len, self._leaves), reverse=True)
        return next(number for number in range(1, len(sizes) + 1) if sum(sizes[:number]) >= count)

    def holds(self, count: int, counts: Sequence[int]) -> bool:
        """Return whether a job of *count* nodes may start with so many free nodes below each leaf."""
        if self.placement == "one_leaf" and count <= self.largest_leaf:
            return max(counts) >= count
        return sum(counts) >= count

    def place(self, count: int) -> tuple[int, ...] | None:
        """Return the nodes for a job of *count* nodes, which stay free; None if it has to wait."""
        if count > len(self.free) or not self.holds(count, self.counts()):
            return None
        free = [[node for node in leaf if node in self.free] for leaf in self._leaves]
        rule = "by_leaf" if self.placement == "one_leaf" else self.placement
        chosen = chosen_nodes(rule, count, [leaf for leaf in free if leaf])
        return tuple(sorted(node for node in chosen if isinstance(node, int)))

    def take(self, nodes: Iterable[int]) -> None:
        """Take *nodes*. Raises `AssertionError` if one is not free."""
        nodes = set(nodes)
        assert nodes <= self.free
        self.free -= nodes

    def give_back(self, nodes: Iterable[int]) -> None:
        """Give *nodes* back. Raises `AssertionError` if one is free already."""
        nodes = set(nodes)
        assert not nodes & self.free
        self.free |= nodes
