"""A folded Clos network cable by cable: each uplink of a leaf ends at a spine of its own, each of a spine at a core.

The switches that uplink j of all leaves reach are plane j. A path through two levels chooses a plane; through three
levels it chooses a plane and a core of the plane, and so the way down too (Al-Fares et al., "A Scalable, Commodity Data
Center Network Architecture", SIGCOMM 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulator.errors import ClusterError
from topologies.network import Network, Port
from topologies.routing import Routing, digits

Level = Sequence[tuple[int, float]]
"""(switch, bandwidth below it in bytes/s) of the switches of one level."""


@dataclass(frozen=True)
class Planes:
    """Paths through a fat tree whose uplinks are single cables.

    By port: *leaf_of*, and its *place* in the order of the leaves. *above*: the switches that the uplinks of a switch
    end at, in order.
    """

    routing: Routing
    leaf_of: Sequence[int]
    place: Sequence[int]
    above: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def __call__(self, source: Port, target: Port) -> list[int]:
        """Return the switches of the first path between two ports."""
        return self.paths(source, target, 0)[0]

    def paths(self, source: Port, target: Port, connection: int) -> list[list[int]]:
        """Return the switches of each path that packets between two ports take; each path has an equal share."""
        here, there = self.leaf_of[source.number], self.leaf_of[target.number]
        if here == there:
            return [[here]]
        if self.routing.policy == "static":
            return [self._path(here, there, self.place[target.number])]
        hashes = self.routing.hashes(source.number, target.number, connection)
        return [self._path(here, there, number) for number in hashes]

    def _path(self, here: int, there: int, number: int) -> list[int]:
        """The path between two leaves that *number* chooses: its lowest digit the plane, the next one the core."""
        planes = min(len(self.above[here]), len(self.above[there]))
        plane = number % planes
        up, down = self.above[here][plane], self.above[there][plane]
        if up == down:
            return [here, up, there]
        _, core = digits(number, planes, min(len(self.above[up]), len(self.above[down])))
        return [here, up, self.above[up][core], down, there]


def planes(
    network: Network, leaf_of: Sequence[int], place: Sequence[int], groups: Sequence[Level], ratios: Sequence[float]
) -> Planes:
    """Build the levels above leaves. *groups*: the leaves of each pod. *ratios*: bandwidth down over bandwidth up."""
    above: dict[int, list[int]] = {}
    spines = [_joined(network, "spine", group, ratios[0], above) for group in groups]
    if len(groups) > 1:
        for plane in range(max(map(len, spines))):
            _joined(network, "core", [pod[plane] for pod in spines if plane < len(pod)], ratios[1], above)
    return Planes(network.routing, leaf_of, place, above)


def _joined(network: Network, kind: str, below: Level, ratio: float, above: dict[int, list[int]]) -> Level:
    """Join each of *below* by single cables to switches of *kind* above it, and return these switches."""
    cables = {switch: _cables(network, bandwidth / ratio) for switch, bandwidth in below}
    tops = [network.switch(kind) for _ in range(max(cables.values()))]
    reaching = dict.fromkeys(tops, 0.0)
    for switch, bandwidth in below:
        above[switch] = tops[: cables[switch]]
        for top in above[switch]:
            network.join(switch, top, bandwidth / ratio / cables[switch])
            reaching[top] += bandwidth / ratio / cables[switch]
    return list(reaching.items())


def _cables(network: Network, bandwidth: float) -> int:
    """The number of cables that carry *bandwidth* bytes/s."""
    number = max(1, round(bandwidth / network.cable.bandwidth))
    if number > network.radix:
        raise ClusterError(
            f"a switch of {network.radix} ports cannot have {number} cables up;"
            " give the fabric a larger radix or faster cables"
        )
    return number
