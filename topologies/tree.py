"""A tree of switches from a root down, with GPUs below the lowest switches and hosts at the root."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from simulator.accelerator import Accelerator
from simulator.cluster import Cluster, Link, Router
from simulator.cluster.topology import Topology, sorted_topology
from simulator.cluster.vertices import NONE, Numbered, Vertices
from simulator.hashing import Indices, Table

ROOT = 0


def tree(
    arity: Sequence[int],
    bandwidth: Sequence[float],
    latency: Sequence[float],
    hosts: int = 1,
    accelerator: Accelerator | None = None,
) -> Cluster:
    """Build a tree from *arity*, *bandwidth* (bytes/s) and *latency* (s, of each link) by level, the root's links
    first.

    The hosts are linked to the root with the last bandwidth and latency. The GPUs below one switch are a node.

    >>> cluster = tree([2, 3], [20e6, 37.5e6], [50e-6, 50e-6])
    >>> [cluster.ends[link] for link in cluster.route("gpu 0", "gpu 3")][1:-1]
    [('switch 1', 'switch 0'), ('switch 0', 'switch 2')]
    """
    links = [Link(f"level_{n}", b, a) for n, (b, a) in enumerate(zip(bandwidth, latency, strict=True), start=1)]
    sizes = list(accumulate(arity, mul, initial=1))
    begins = list(accumulate(sizes, initial=0))
    above, level = [np.full(1, NONE)], [np.zeros(1, np.int64)]
    for number, (branches, size) in enumerate(zip(arity, sizes[1:], strict=True)):
        above.append(begins[number] + np.arange(size) // branches)
        level.append(np.full(size, number))
    above.append(np.full(hosts, ROOT))
    level.append(np.full(hosts, len(arity) - 1))
    vertices = _vertices(begins[-2], sizes[-1], hosts, arity[-1], accelerator or Accelerator())
    parents = np.concatenate(above)
    return Cluster(_topology(vertices, parents, links, np.concatenate(level)), _router(parents.tolist()), "tree")


def _vertices(switches: int, gpus: int, hosts: int, below: int, accelerator: Accelerator) -> Vertices:
    """Switches, then GPUs (*below* of them under each of the lowest switches), then hosts."""
    kinds = ("switch", "gpu", "host")
    kind = np.repeat(np.arange(3), [switches, gpus, hosts])
    node = np.full(len(kind), NONE)
    node[kind == 1] = np.arange(gpus) // below
    names = Numbered(kinds, kind, np.r_[:switches, :gpus, :hosts])
    computes = np.where(kind == 0, NONE, 0)
    return Vertices(kinds, kind, range(gpus // below), node, (accelerator,), computes, names)


def _topology(vertices: Vertices, above: Indices, links: Sequence[Link], level: Indices) -> Topology:
    """Every vertex but the root joined to the vertex *above* it by the link of its *level*."""
    below = np.flatnonzero(above != NONE)
    table: Table[Link] = Table()
    which = np.array([table.number(link) for link in links], np.int64)[level[below]]
    source = np.stack([below, above[below]], axis=1).ravel()
    target = np.stack([above[below], below], axis=1).ravel()
    return sorted_topology(vertices, table.values, source, target, np.repeat(which, 2))


def _router(above: Sequence[int]) -> Router:
    """A router that goes up from both ends to the first common vertex. *above*: by vertex the one above it."""

    def climb(vertex: int) -> list[int]:
        path = [vertex]
        while above[path[-1]] != NONE:
            path.append(above[path[-1]])
        return path

    def route(source: int, target: int) -> list[int]:
        up, down = climb(source), climb(target)
        meeting = next(vertex for vertex in up if vertex in down)
        return up[: up.index(meeting) + 1] + down[: down.index(meeting)][::-1]

    return route
