"""The input of an engine: a schedule with its rank classes, durations and network, and the conditions of the
network from outside the schedule: links that change their bandwidth, and traffic of other jobs.

Rank classes say which ranks are simulated, the partners of each communication, and its plan on the network.
`RankClasses` is the interface that engines use. `Unfolded` simulates every rank. `simulator.engine.folding` has the
other implementation: one representative for each class of equal ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from clustersim.simulator.engine.pricing import Pricing
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.plan import Flow, TransferPlan
from clustersim.simulator.network.routes import Paths, link_shares
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.schedule import Schedule

Communication = Hashable
"""The name of all communications between the same partners."""

ONE_INSTANT = 1e-12
"""Arrivals at a server are simultaneous if they differ by less than this fraction of the simulated time.

Two ways to add the same durations differ by a fraction of some 1e-16. Only at a server would that change the order."""


@dataclass(frozen=True)
class Setup:
    """One simulation of *schedule*.

    *classes*: the representative of each rank, the partners and the plan of each communication, the rows of the
    network. *capacity_changes* are ascending in time. *background*: the flows from outside the schedule.
    """

    schedule: Schedule
    classes: RankClasses
    pricing: Pricing
    capacity_changes: Sequence[CapacityChange] = ()
    background: Sequence[Background] = ()


class CapacityChange(NamedTuple):
    """From *time* (s) on, *row* of the network carries *capacity* bytes/s."""

    time: float
    row: int
    capacity: float


class Background(NamedTuple):
    """A transfer of *flow* from *begin* to *end* (s); its rate is at most the bound of the flow."""

    flow: Flow
    begin: float
    end: float


class RankClasses(Protocol):
    """What engines need to know. Where ranks are folded, the name of a communication is that of its class."""

    @property
    def representative(self) -> Indices:
        """For each rank, the rank that is simulated for it."""

    @property
    def capacity(self) -> Sequence[float]:
        """The capacity of each row of the network, bytes/s. A row is a link, or a class of equal links."""

    @property
    def link_multiplicity(self) -> Mapping[int, int]:
        """How many equal links a link represents, by its number. A link that is not a key represents itself."""

    def row_of(self, link: int) -> int:
        """The row of the link of that number."""

    def communication(self, rank: int, op: Op) -> Communication:
        """The name of the communication in which *rank* takes part by *op*."""

    def partners(self, name: Communication, op: Op) -> int:
        """The number of simulated ranks that must arrive before the communication begins."""

    def multiplicity(self, name: Communication) -> int:
        """The number of equal communications that the simulated one represents."""

    def ranks_on_host(self, rank: int) -> int:
        """The number of ranks of the class of *rank* that compute on its host."""

    def host(self, name: str) -> Hashable:
        """The class of the host processor *name*; one processor of each class is simulated."""

    def plan(self, name: Communication, op: Op) -> TransferPlan:
        """The plan of *op* on the network."""


class Unfolded:
    """Every rank of *schedule* is simulated; *communicator* makes the plans."""

    def __init__(self, schedule: Schedule, communicator: Communicator) -> None:
        self.schedule, self.communicator = schedule, communicator

    @property
    def representative(self) -> Indices:
        """Each rank itself."""
        return np.arange(self.schedule.mesh.world_size)

    @property
    def capacity(self) -> Sequence[float]:
        """The bandwidths of all links; every link is a row."""
        bandwidths: list[float] = self.communicator.cluster.bandwidths.tolist()
        return bandwidths

    @property
    def link_multiplicity(self) -> Mapping[int, int]:
        """Every link represents itself."""
        return {}

    def row_of(self, link: int) -> int:
        """The link itself."""
        return link

    def communication(self, rank: int, op: Op) -> Communication:
        """See `communication`."""
        return communication(self.schedule, rank, op)

    def partners(self, name: Communication, op: Op) -> int:
        """All members of a group, both ends of a message."""
        return len(partners(self.schedule, name)) if isinstance(op, Collective) else 2 - isinstance(op, Copy)

    def multiplicity(self, name: Communication) -> int:
        """One."""
        return 1

    def ranks_on_host(self, rank: int) -> int:
        """The rank itself."""
        return 1

    def host(self, name: str) -> Hashable:
        """The host itself."""
        return name

    def plan(self, name: Communication, op: Op) -> TransferPlan:
        """The plan between the partners themselves."""
        return self.communicator.plan(op, partners(self.schedule, name))


def communication(schedule: Schedule, rank: int, op: Op) -> tuple[object, ...]:
    """(axis, group) of a collective, (axis, group, sender, receiver) of a message, (rank,) of a copy."""
    if isinstance(op, Copy):
        return (rank,)
    assert isinstance(op, Collective | Send | Recv)
    place = schedule.mesh.axes[op.over].place(rank)
    assert place is not None, f"rank {rank} is not on {op.over}: check() reports it"
    if isinstance(op, Collective):
        return op.over, place[0]
    ends = (place[1], op.peer) if isinstance(op, Send) else (op.peer, place[1])
    return (op.over, place[0], *ends)


def partners(schedule: Schedule, name: Communication) -> tuple[int, ...]:
    """The ranks that take part; of a message the sender, then the receiver."""
    match name:
        case (int() as rank,):
            return (rank,)
        case (str() as axis, int() as group):
            return schedule.mesh.axes[axis].groups[group]
        case (str() as axis, int() as group, int() as sender, int() as receiver):
            ranks = schedule.mesh.axes[axis].groups[group]
            return ranks[sender], ranks[receiver]
    raise AssertionError(name)


@dataclass(frozen=True, slots=True)
class BandwidthChange:
    """From *time* (s) on, the link from vertex *source* to vertex *target* of the cluster has *bandwidth* bytes/s."""

    time: float
    source: str
    target: str
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic from device *source* to device *target*, of at most *rate* bytes/s, from *begin* to *end* (s)."""

    source: str
    target: str
    rate: float
    begin: float
    end: float


@dataclass(frozen=True)
class NetworkConditions:
    """*changes* of bandwidth, and the *traffic* of other jobs."""

    changes: Sequence[BandwidthChange] = ()
    traffic: Sequence[Traffic] = ()

    def links(self, cluster: Cluster) -> set[int]:
        """The numbers of the links that are affected. Raises `ClusterError` for a link that does not exist."""
        return {_number(cluster, one) for one in self.changes} | {
            link for one in self.traffic for link in chain(*cluster.paths(one.source, one.target))
        }

    def capacity_changes(self, cluster: Cluster, classes: RankClasses) -> list[CapacityChange]:
        """The changes as changes of rows of the network, ascending in time."""
        found = [CapacityChange(one.time, classes.row_of(_number(cluster, one)), one.bandwidth) for one in self.changes]
        return sorted(found, key=lambda change: change.time)

    def background(self, cluster: Cluster, classes: RankClasses) -> list[Background]:
        """The traffic as flows over rows of the network."""
        return [Background(_flow(one, cluster, classes), one.begin, one.end) for one in self.traffic]


def _number(cluster: Cluster, change: BandwidthChange) -> int:
    try:
        return cluster.number(change.source, change.target)
    except KeyError:
        raise ClusterError(
            f"there is no link from {change.source} to {change.target}; its bandwidth cannot change"
        ) from None


def _flow(traffic: Traffic, cluster: Cluster, classes: RankClasses) -> Flow:
    found, shares, _ = link_shares(Paths.listed([cluster.paths(traffic.source, traffic.target)]))
    alone = min(traffic.rate, float((cluster.bandwidths_of(found) / shares).min()))
    rows = np.array([classes.row_of(link) for link in found.tolist()], np.int64)
    return Flow(found, shares, rows, shares, alone, traffic.rate)
