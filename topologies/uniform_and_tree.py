"""Clusters that are not made of nodes and a fabric: uniform, the machine of the alpha-beta model, in which every
device has one full-duplex port into a crossbar; and a tree of switches from a root down, with GPUs below the lowest
switches and hosts at the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster, Router
from clustersim.simulator.hardware.hashing import Indices, Numbering
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.hardware.topology import NONE, Numbered, Topology, Vertices, sorted_topology

CROSSBAR = 1
"""The number of the crossbar's vertex, which follows the first device."""

ROOT = 0


def uniform(
    gpus: int, bandwidth: float, latency: float, hosts: int = 1, accelerator: Accelerator | None = None
) -> Cluster:
    """Build a cluster on which d bytes between any two devices take *latency* + d / *bandwidth* (s, bytes/s).

    The sender's link has half of the latency and the receiver's link the other half. All devices are in one node.

    >>> cluster = uniform(4, 10e9, 5e-6)
    >>> cluster.latency(cluster.route("gpu 0", "gpu 3"))
    5e-06
    """
    kinds = ("gpu", "host", "switch")
    kind = np.insert(np.repeat([0, 1], [gpus, hosts]), CROSSBAR, 2)
    number = np.insert(np.r_[:gpus, :hosts], CROSSBAR, 0)
    inside = np.where(kind == 2, NONE, 0)
    computes = (accelerator or Accelerator(),)
    vertices = Vertices(kinds, kind, (0,), inside, computes, inside, Numbered(kinds, kind, number))
    devices = np.flatnonzero(kind != 2)
    crossbar = np.full(len(devices), CROSSBAR)
    ends = np.r_[devices, crossbar], np.r_[crossbar, devices]
    port = Link("port", bandwidth, latency / 2)
    topology = sorted_topology(vertices, (port,), (*ends, np.zeros(2 * len(devices), np.int64)))
    return Cluster(topology, _through_crossbar, "uniform")


def _through_crossbar(source: int, target: int) -> list[int]:
    return [source] if source == target else [source, CROSSBAR, target]


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
    vertices = _tree_vertices(begins[-2], sizes[-1], hosts, arity[-1], accelerator or Accelerator())
    parents = np.concatenate(above)
    return Cluster(
        _tree_topology(vertices, parents, links, np.concatenate(level)), _tree_router(parents.tolist()), "tree"
    )


def _tree_vertices(switches: int, gpus: int, hosts: int, below: int, accelerator: Accelerator) -> Vertices:
    """Switches, then GPUs (*below* of them under each of the lowest switches), then hosts."""
    kinds = ("switch", "gpu", "host")
    kind = np.repeat(np.arange(3), [switches, gpus, hosts])
    node = np.full(len(kind), NONE)
    node[kind == 1] = np.arange(gpus) // below
    names = Numbered(kinds, kind, np.r_[:switches, :gpus, :hosts])
    computes = np.where(kind == 0, NONE, 0)
    return Vertices(kinds, kind, range(gpus // below), node, (accelerator,), computes, names)


def _tree_topology(vertices: Vertices, above: Indices, links: Sequence[Link], level: Indices) -> Topology:
    """Every vertex but the root joined to the vertex *above* it by the link of its *level*."""
    below = np.flatnonzero(above != NONE)
    table: Numbering[Link] = Numbering()
    which = np.array([table.number(link) for link in links], np.int64)[level[below]]
    source = np.stack([below, above[below]], axis=1).ravel()
    target = np.stack([above[below], below], axis=1).ravel()
    return sorted_topology(vertices, table.values, (source, target, np.repeat(which, 2)))


def _tree_router(above: Sequence[int]) -> Router:
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
