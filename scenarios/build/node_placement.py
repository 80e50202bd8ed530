"""The placement of jobs on nodes: which nodes of the cluster each job has, by count and rule, or as listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Literal

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.reading.document import Document

if TYPE_CHECKING:
    from clustersim.scenarios.specification.specification import ClusterJob

Node = int | str
"""The number of a server, or the name of a device without one."""

NodePlacement = Literal["packed", "scattered", "by_leaf"]


def nodes_of_jobs(jobs: Mapping[str, ClusterJob], cluster: Cluster, document: Document) -> dict[str, tuple[Node, ...]]:
    """Return the nodes of each of *jobs*, in the order of the jobs; listed nodes are taken first.

    Raises `ScenarioError` at the job that needs more nodes than there are, or one that another has.
    """
    every = list(dict.fromkeys(cluster.node_of(gpu) for gpu in cluster.gpus))
    leaves = leaves_of(cluster)
    owner: dict[Node, str] = {}
    for name, job in jobs.items():
        for place, number in enumerate(job.nodes if isinstance(job.nodes, list) else []):
            path = "jobs", name, "nodes", place
            if number >= len(every):
                raise document.error(path, f"there is no node {number}; nodes go from 0 to {len(every) - 1}")
            if every[number] in owner:
                raise document.error(path, f"node {number} is that of {owner[every[number]]}; name another")
            owner[every[number]] = name
    for name, job in jobs.items():
        if isinstance(job.nodes, list):
            continue
        free = [node for node in every if node not in owner]
        if job.nodes > len(free):
            taken = ", ".join(f"{other} {list(owner.values()).count(other)}" for other in dict.fromkeys(owner.values()))
            has = f"{cluster.name} has {len(every)}" + (f", of which {taken}" if taken else "")
            raise document.error(
                ("jobs", name, "nodes"),
                f"{job.nodes} nodes are more than the {len(free)} that are free: {has}; "
                f"give at most {len(free)}, or cluster.nodes more",
            )
        owner |= dict.fromkeys(chosen_nodes(job.placement, job.nodes, by_leaf(free, leaves)), name)
    return {name: tuple(node for node in every if owner.get(node) == name) for name in jobs}


def nodes_alone(count: int, cluster: Cluster) -> list[Node]:
    """Return *count* nodes of the empty *cluster*, below as few leaves as possible."""
    leaves = leaves_of(cluster)
    return chosen_nodes("by_leaf", count, by_leaf(list(leaves), leaves))


def chosen_nodes(placement: NodePlacement, count: int, leaves: Sequence[Sequence[Node]]) -> list[Node]:
    """Return *count* nodes of those that are free below each of *leaves*.

    packed: the first ones. scattered: one below each leaf in turn. by_leaf: the leaf with the fewest free nodes that
    holds the job (best fit); without one, the leaf with the most, and so on for the rest.
    """
    if placement == "packed":
        return list(chain.from_iterable(leaves))[:count]
    if placement == "scattered":
        return [node for turn in zip_longest(*leaves) for node in turn if node is not None][:count]
    found: list[Node] = []
    left = sorted(leaves, key=len)
    while len(found) < count:
        rest = count - len(found)
        best = next((own for own in left if len(own) >= rest), left[-1])
        left.remove(best)
        found += best[:rest]
    return found


def by_leaf(free: Iterable[Node], leaves: Mapping[Node, frozenset[str]]) -> list[list[Node]]:
    """Return the nodes of *free* by leaf."""
    found: dict[frozenset[str], list[Node]] = {}
    for node in free:
        found.setdefault(leaves[node], []).append(node)
    return list(found.values())


def leaves_of(cluster: Cluster) -> dict[Node, frozenset[str]]:
    """Return the switches to which each node with GPUs is joined: one leaf, or one for each rail."""
    vertices, topology = cluster.vertices, cluster.topology
    found: dict[Node, set[str]] = {cluster.node_of(gpu): set() for gpu in cluster.gpus}
    outside = vertices.node[topology.target] == NONE
    inside = vertices.node[topology.source] != NONE
    for number in np.flatnonzero(outside & inside).tolist():
        node = vertices.node_of(int(topology.source[number]))
        if node in found:
            found[node].add(cluster.ends[number][1])
    for gpu in cluster.gpus:
        if cluster.node_of(gpu) == gpu:
            neighbours = topology.leaving(cluster.vertex(gpu))
            found[gpu] |= {vertices.names[one] for one in neighbours} - set(cluster.devices)
    return {node: frozenset(switches) for node, switches in found.items()}
