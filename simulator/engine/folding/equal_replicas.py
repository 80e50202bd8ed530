"""The search for equal replicas of a schedule: what distinguishes them, and the table of one of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clustersim.simulator.engine.folding.communications import CommunicationTable
from clustersim.simulator.engine.folding.flows import WideContents, contents_of
from clustersim.simulator.engine.folding.replicas import Flags, Kinds, Replicas, cut
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Colours, Indices
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.network.library.communicator import Communicator

Wide = Mapping[int, Sequence[tuple[Indices, WideContents]]]
"""By the index of a group class: the rows of its communications that are placed isomorphically, and their flows."""


@dataclass(frozen=True, eq=False)
class EqualReplicas:
    """*replicas* of equal kinds; the *table* of the communications of one replica of each kind, and of *wide* ones."""

    replicas: Replicas
    table: CommunicationTable
    wide: Wide


def equal_replicas(
    table: CommunicationTable, communicator: Communicator, ranks: Colours, unfillable: Flags
) -> EqualReplicas | None:
    """Return the equal replicas of the schedule of *table*; None if there are none.

    *ranks*: the initial colour of each rank. *unfillable*: True for links that no load can fill. On an irregular
    cluster, or if a cable between switches can be full, nothing is known of the flows before all are enumerated.
    """
    cluster = communicator.cluster
    if cluster.regularity is None:
        return None
    cables = _cables(cluster)
    device = communicator.device[: len(ranks)]
    found = cut(table, cluster.regularity.server[device]) if unfillable[cables].all() else None
    if found is None:
        return None
    placement = communicator.placements.whole(device[found.grid])
    kinds = Kinds(found, placement, ranks)
    wide: dict[int, list[tuple[Indices, WideContents]]] = {}
    for number, group_class in enumerate(table.group_classes):
        if not found.is_wide(group_class):
            kinds.add_inner(group_class)
            continue
        wide[number] = list(contents_of(group_class, communicator, WideContents))
        for rows, content in wide[number]:
            kinds.add_wide(group_class, rows, content.crossed(group_class.ranks.shape[1], cables))
    if kinds.numbers.max() + 1 == len(found.grid):
        return None
    replicas = Replicas(found, kinds.numbers, placement.slots, cables)
    kept = [
        np.arange(len(one.ranks)) if number in wide else replicas.inner_rows(one)
        for number, one in enumerate(table.group_classes)
    ]
    return EqualReplicas(replicas, table.reduced(kept), wide)


def _cables(cluster: Cluster) -> Flags:
    """By link: True between two switches that are in no server."""
    inside = cluster.topology.vertices.node != NONE
    return np.asarray(~(inside[cluster.topology.source] | inside[cluster.topology.target]))
