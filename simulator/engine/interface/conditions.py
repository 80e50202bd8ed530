"""Conditions of the network from outside the schedule: links that change their bandwidth, and traffic of other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.placing.routes import link_shares
from clustersim.simulator.reading.errors import ClusterError

if TYPE_CHECKING:
    from clustersim.simulator.engine.interface.setup import Background, CapacityChange, RankClasses
    from clustersim.simulator.network.plan import Flow


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
class Conditions:
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
        from clustersim.simulator.engine.interface.setup import CapacityChange

        found = [CapacityChange(one.time, classes.row_of(_number(cluster, one)), one.bandwidth) for one in self.changes]
        return sorted(found, key=lambda change: change.time)

    def background(self, cluster: Cluster, classes: RankClasses) -> list[Background]:
        """The traffic as flows over rows of the network."""
        from clustersim.simulator.engine.interface.setup import Background

        return [Background(_flow(one, cluster, classes), one.begin, one.end) for one in self.traffic]


def _number(cluster: Cluster, change: BandwidthChange) -> int:
    try:
        return cluster.number(change.source, change.target)
    except KeyError:
        raise ClusterError(
            f"there is no link from {change.source} to {change.target}; its bandwidth cannot change"
        ) from None


def _flow(traffic: Traffic, cluster: Cluster, classes: RankClasses) -> Flow:
    from clustersim.simulator.network.plan import Flow

    shares = link_shares([cluster.paths(traffic.source, traffic.target)])
    links, crossings = tuple(shares), tuple(shares.values())
    alone = min([traffic.rate, *(cluster.links[link].bandwidth / share for link, share in shares.items())])
    return Flow(links, crossings, tuple(map(classes.row_of, links)), crossings, alone, traffic.rate)
