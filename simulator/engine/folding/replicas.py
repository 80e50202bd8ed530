"""Equal replicas of a schedule on a regular cluster: flows are enumerated for one replica of each kind.

The longest axis of the mesh cuts the ranks into *replicas*: those with one coordinate on it, or with a few that share
servers. A communication lies within one replica, or it is *wide*, as are those of the axis itself. Two replicas are of
one *kind* if their ranks have equal colours one by one, lie on equal servers that are connected equally, have the same
communications, and if each of them takes part at the same place in the same wide communications, whose flows cross the
same links of its servers.

*Theorem.* Let links of servers carry flows of one replica and wide flows only, and let no load fill the cables above
(`simulator.engine.folding.non_binding`). Then the partition of ranks, communications, flows and links by kind and by
place in the replica is equitable, with each wide communication as a class of its own.

*Proof.* All that a rank, a communication, a flow or a link of a replica is joined with lies in the replica or is wide,
and both are compared by the kind. Every wide communication and flow is alone in its class.

So colour refinement finds the same colours if it looks at one replica of each kind, and if a wide vertex counts each of
its neighbours as often as there are replicas of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.engine.folding.communications import CommunicationTable, GroupClass
from clustersim.simulator.hardware.hashing import Colours, Indices, firsts, mixed, of_positions
from clustersim.simulator.network.isomorphic_groups import Placement, Slots
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.mesh import NOWHERE

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class MeshCut:
    """Ranks cut into replicas. *replica*: by rank its replica. *place*: by rank its place in the replica. *grid*: the
    ranks, of shape ``(replicas, places)``."""

    replica: Indices
    place: Indices
    grid: Indices

    def is_wide(self, group_class: GroupClass) -> bool:
        """True if a communication of *group_class* has partners in several replicas."""
        replica = self.replica[group_class.ranks]
        return bool((replica != replica[:, :1]).any())


def cut(table: CommunicationTable, servers: Indices) -> MeshCut | None:
    """The ranks of *table* cut along their longest axis; *servers*: by rank its server, which is in one replica.

    None if there is no such axis, or if servers cannot be divided equally.
    """
    count = len(servers)
    axes = [axis for axis in table.schedule.mesh.axes.values() if len(axis.groups) and axis.lengths.sum() == count]
    equal = [axis for axis in axes if (axis.lengths == axis.lengths[0]).all()]
    longest = max(equal, key=lambda axis: int(axis.lengths[0]), default=None)
    if longest is None:
        return None
    group, coordinate = longest.places(count)
    if (group == NOWHERE).any():
        return None
    shared = len(np.unique(coordinate[servers == servers[np.argmin(coordinate)]]))
    replicas, rest = divmod(int(longest.lengths[0]), shared)
    if rest or replicas < 2:
        return None
    replica, place = coordinate // shared, coordinate % shared * len(longest.groups) + group
    grid = np.empty((replicas, shared * len(longest.groups)), np.int64)
    grid[replica, place] = np.arange(count)
    owner = np.empty(servers.max() + 1, np.int64)
    owner[servers] = replica
    return MeshCut(replica, place, grid) if np.array_equal(owner[servers], replica) else None


class Kinds:
    """The kinds of the replicas of *cut*, as far as they are known: colours that grow with what is added."""

    def __init__(self, cut: MeshCut, placement: Placement, ranks: Colours) -> None:
        self.cut = cut
        self._colours: Colours = placement.patterns.astype(np.uint64) + of_positions(ranks[cut.grid].view(np.int64))

    def add_inner(self, group_class: GroupClass) -> None:
        """Add the communications of *group_class*, each of which lies in one replica."""
        replica, places = self.cut.replica[group_class.ranks[:, 0]], self.cut.place[group_class.ranks]
        if self._all_equal(replica, places):
            return
        salt = mixed(np.arange(places.shape[1], dtype=np.uint64) + np.uint64(group_class.start))
        np.add.at(self._colours, replica, mixed(mixed(places.astype(np.uint64) ^ salt).sum(axis=1)))

    def _all_equal(self, replica: Indices, places: Indices) -> bool:
        """True if each replica in turn has the same rows of *places*. *replica*: by row its own."""
        count = len(self._colours)
        if len(replica) % count or (replica.reshape(count, -1) != np.arange(count)[:, None]).any():
            return False
        rows = places.reshape(count, -1)
        return bool((rows == rows[:1]).all())

    def add_wide(self, group_class: GroupClass, rows: Indices, crossed: Colours) -> None:
        """Add the wide communications *rows* of *group_class*; *crossed*: by position a colour of the links crossed."""
        ranks = group_class.ranks[rows]
        numbers = mixed((group_class.start + rows).astype(np.uint64))[:, None]
        colours = mixed(mixed(numbers ^ self.cut.place[ranks].astype(np.uint64)) ^ crossed)
        np.add.at(self._colours, self.cut.replica[ranks], colours)

    @cached_property
    def numbers(self) -> Indices:
        """By replica the number of its kind, in order of the first replica."""
        _, first, which = np.unique(self._colours, return_index=True, return_inverse=True)
        number = np.empty(len(first), np.int64)
        number[np.argsort(first)] = np.arange(len(first))
        return np.asarray(number[which])


class Replicas:
    """The replicas of *cut* by their *kinds*. *slots*: by replica the first links of its servers and switches.

    *kept*: by rank, True in the first replica of a kind. *copies*: by rank, the number of replicas of its kind.
    *stands_for*: by rank, the kept rank at its place. *cables*: by link of the cluster, True for links between
    switches. *leaves*: by replica a colour of the switches that its ranks are connected to.
    """

    def __init__(self, cut: MeshCut, kinds: Indices, slots: Slots, cables: Flags, leaves: Colours) -> None:
        self.cut, self._kinds, self._slots, self.cables, self._leaves = cut, kinds, slots, cables, leaves
        self.first = firsts(kinds)
        self.copies: Indices = np.bincount(kinds)[kinds][cut.replica]
        self.stands_for: Indices = cut.grid[self.first[kinds][cut.replica], cut.place]
        self.kept: Flags = self.stands_for == np.arange(len(cut.replica))

    def inner_rows(self, group_class: GroupClass) -> Indices:
        """The communications of *group_class* that lie in kept replicas."""
        return np.flatnonzero(self.kept[group_class.ranks[:, 0]])

    def everywhere_in_servers(self, links: Indices) -> Iterator[tuple[Indices, Indices]]:
        """For each kept replica: which of *links* are of its servers, and the same links of all replicas of its kind.

        The second array has a row for each replica and a column for each link.
        """
        slots = np.stack([self._slots.of(first) for first in self.first.tolist()])
        owner = np.repeat(np.arange(len(slots)), slots.shape[1])
        slot, _ = Slots(slots.reshape(1, -1)).places(links)
        for number in range(len(self.first)):
            own = np.flatnonzero(owner[slot] == number)
            if len(own):
                yield own, self._slots.some(np.flatnonzero(self._kinds == number)).everywhere(links[own])

    def above(self, ranks: Indices, cables: Indices) -> Iterator[tuple[Indices, Indices, Indices]]:
        """For each kept replica: which of *cables* flows of it cross, the same ones of all replicas of its kind, and
        how many replicas have these.

        *ranks*: by cable, a rank of the replica. The second array has a row for all replicas below the same switches,
        and a column for each cable.
        """
        replica = self.cut.replica[ranks]
        for number, first in enumerate(self.first.tolist()):
            own = np.flatnonzero(replica == first)
            if len(own):
                slots, counts = self._below_switches[number]
                yield own, slots.everywhere(cables[own]), counts

    @cached_property
    def _below_switches(self) -> list[tuple[Slots, Indices]]:
        """By kind the slots of the first replica below each set of switches, and how many replicas are below them."""
        found = []
        for number in range(len(self.first)):
            like = np.flatnonzero(self._kinds == number)
            _, first, counts = np.unique(self._leaves[like], return_index=True, return_counts=True)
            order = np.argsort(first)
            found.append((self._slots.some(like[first[order]]), counts[order]))
        return found
