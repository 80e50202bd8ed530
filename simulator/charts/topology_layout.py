"""The picture of a cluster: its vertices and links, or of a large one a single server and the rest by kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from itertools import permutations

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.timeline import Floats, Timeline
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.reading.dataclass import dataclass

MOST_VERTICES = 40
"""Vertices up to which a cluster is drawn whole."""
SERVERS = "other nodes"
"""The kind of the vertex that stands for all servers but the drawn one."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """*count* vertices of *kind*, drawn as one; *tier*: links from the nearest GPU, below 0 for what joins GPUs only.

    *name*: that of the vertex if it is one.
    """

    kind: str
    count: int
    tier: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """*count* links of *kind* between two vertices of the picture, both directions of a pair as one link.

    *bandwidth*: bytes/s of one link and direction. *use*: the used share of the busiest; None if it is not known.
    """

    source: int
    target: int
    kind: str
    bandwidth: float
    count: int
    use: float | None


@dataclass(frozen=True, slots=True)
class TopologyPicture:
    """The *vertices* and *edges* of a picture. *hottest*: the name of the busiest link and its use, if known.

    *servers*: the number of servers of the cluster; *whole*: True if every vertex is drawn.
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    servers: int
    whole: bool
    hottest: tuple[str, float] | None


def topology(timeline: Timeline, cluster: Cluster) -> TopologyPicture:
    """Return the picture of *cluster*, on which *timeline* ran: whole, or the server of the busiest link and the rest.

    The use of a link is the mean over the step. Equal links of a folded run have the use of their representative; a
    link that is known only by its class has the greatest use of the class.
    """
    use = _use(timeline, cluster)
    busiest = max(use, key=use.__getitem__, default=None)
    vertices = cluster.vertices
    whole = len(vertices) <= MOST_VERTICES
    server = _server(cluster, busiest)
    keys = [_key(cluster, vertex, whole, server) for vertex in range(len(vertices))]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    place = np.array([numbers[key] for key in keys])
    ends = cluster.ends[busiest] if busiest is not None else ("", "")
    hottest = (f"{ends[0]} → {ends[1]}", use[busiest]) if busiest is not None else None
    made = _vertices(cluster, place, len(numbers), server, whole)
    links = _edges(cluster, place, _every_use(timeline, cluster, use))
    return TopologyPicture(made, links, len(vertices.nodes), whole, hottest)


def _use(timeline: Timeline, cluster: Cluster) -> dict[int, float]:
    """Return the used share of the bandwidth over the step, by number of link; nothing if it is not known."""
    if not network_traffic.utilisation(timeline):
        return {}
    seconds = timeline.step_time * timeline.steps_run
    return {number: b / (cluster.links[number].bandwidth * seconds) for number, b in timeline.link_bytes.items() if b}


def _every_use(timeline: Timeline, cluster: Cluster, use: Mapping[int, float]) -> Floats:
    """Return the use of every link, by number; NaN if no use is known at all."""
    if not use:
        return np.full(len(cluster.links), np.nan)
    every = np.zeros(len(cluster.links))
    if len(timeline.distinct_ranks) < timeline.world_size:
        classes: dict[int, float] = {}
        for number, share in use.items():
            one = cluster.link_class(number)
            classes[one] = max(classes.get(one, 0.0), share)
        every = np.array([classes.get(cluster.link_class(number), 0.0) for number in range(len(every))])
    for number, share in use.items():
        every[number] = share
    _pass_on(cluster, every)
    return every


def _pass_on(cluster: Cluster, use: Floats) -> None:
    """Set the *use* of links at NICs with two neighbours: what comes in by one link goes out by the other.

    Folding keeps one of two links in series if the other never limits a transfer.
    """
    bandwidth = cluster.bandwidths
    for nic in np.flatnonzero((cluster.topology.degrees == 2) & _is_kind(cluster, "nic")).tolist():
        for source, target in permutations(cluster.topology.leaving(nic)):
            into, out = cluster.topology.leaving(source).get(nic), cluster.topology.leaving(nic)[target]
            if into is not None:
                rate = max(use[into] * bandwidth[into], use[out] * bandwidth[out])
                use[into], use[out] = rate / bandwidth[into], rate / bandwidth[out]


def _is_kind(cluster: Cluster, kind: str) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(cluster.vertices), np.bool_)
    found[cluster.vertices.of_kind(kind)] = True
    return found


def _server(cluster: Cluster, busiest: int | None) -> int:
    """Return the number of the server to draw: that of the busiest link, or the first; `NONE` without servers."""
    node = cluster.vertices.node
    ends = () if busiest is None else (cluster.topology.source[busiest], cluster.topology.target[busiest])
    found = [int(node[vertex]) for vertex in ends if node[vertex] != NONE]
    known = node[node != NONE]
    return found[0] if found else int(known[0]) if len(known) else NONE


def _key(cluster: Cluster, vertex: int, whole: bool, server: int) -> Hashable:
    """Return what the vertices share that are drawn as one."""
    node = int(cluster.vertices.node[vertex])
    if whole or node == server != NONE:
        return vertex
    return SERVERS if node != NONE else ("kind", int(cluster.vertices.kind[vertex]))


def _vertices(cluster: Cluster, place: Indices, count: int, server: int, whole: bool) -> tuple[Vertex, ...]:
    tiers, vertices = _tiers(cluster), cluster.vertices
    made = []
    for number in range(count):
        mine = np.flatnonzero(place == number)
        first = int(mine[0])
        if not whole and vertices.node[first] not in (NONE, server):
            made.append(Vertex(SERVERS, len(vertices.nodes) - 1, int(tiers[vertices.node == server].max())))
        else:
            name = vertices.names[first] if len(mine) == 1 else ""
            made.append(Vertex(vertices.kinds[vertices.kind[first]], len(mine), int(tiers[mine].min()), name))
    return tuple(made)


def _tiers(cluster: Cluster) -> Indices:
    """Return for each vertex the number of links from the nearest GPU; -1 for switches that join only GPUs."""
    source, target = cluster.topology.source, cluster.topology.target
    gpus = cluster.vertices.of_kind("gpu")
    is_gpu = _is_kind(cluster, "gpu")
    tier = np.full(len(is_gpu), NONE)
    tier[gpus] = 0
    waiting = deque(gpus.tolist())
    while waiting:
        vertex = waiting.popleft()
        for other in cluster.topology.leaving(vertex):
            if tier[other] == NONE:
                tier[other] = tier[vertex] + 1
                waiting.append(other)
    outward = np.zeros(len(is_gpu), np.bool_)
    outward[source[~is_gpu[target]]] = True
    outward[target[~is_gpu[source]]] = True
    lone = ~outward & ~is_gpu
    several = len(set(cluster.vertices.node[gpus].tolist())) > 1 or bool(outward[~is_gpu].any())
    tier[lone & several] = -1
    return tier


def _edges(cluster: Cluster, place: Indices, use: Floats) -> tuple[Edge, ...]:
    """Return the links between different vertices of the picture, by pair, kind and bandwidth."""
    ends = np.sort(np.stack((place[cluster.topology.source], place[cluster.topology.target])), axis=0)
    rows = np.stack((*ends, cluster.links.which))[:, ends[0] != ends[1]]
    kept = np.flatnonzero(ends[0] != ends[1])
    distinct, inverse, counts = np.unique(rows, axis=1, return_inverse=True, return_counts=True)
    highest = np.full(distinct.shape[1], -np.inf)
    np.maximum.at(highest, inverse.ravel(), np.nan_to_num(use[kept], nan=-1.0))
    edges = []
    for (a, b, which), count, share in zip(distinct.T.tolist(), counts.tolist(), highest.tolist(), strict=True):
        link = cluster.links.distinct[which]
        # a link in both directions is one cable
        edges.append(Edge(a, b, link.kind, link.bandwidth, max(1, count // 2), share if share >= 0 else None))
    return tuple(edges)
