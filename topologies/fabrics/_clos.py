"""A folded Clos network: leaves below spines below cores. A route goes up as far as needed and down again.

Where one level of cores does not reach all spines, further levels of cores are above it: switches of 128 ports join
524,288 NICs in three levels and 33,554,432 in four (2 (k/2)^n ports in n levels of k-port switches, Al-Fares et al.,
"A Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008, for n = 3).

The equal-cost uplinks of a switch are one bundle with the sum of their bandwidths, so the switches at their upper ends
are one vertex, and traffic is spread over them evenly. Where the routing is by connection or by destination, every
uplink is a cable of its own instead (`Planes`). The switches that uplink j of all leaves reach are plane j. A path
through two levels chooses a plane; through three levels it chooses a plane and a core of the plane, and so the way down
too (Al-Fares et al.).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from math import ceil

import numpy as np

from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies.fabrics._network import Network, Port, Routing, Tree, digits

Level = Sequence[tuple[int, float]]
"""(switch, bandwidth below it in bytes/s) of the switches of one level."""


def clos(
    network: Network, leaves: Sequence[Indices], oversubscription: Sequence[float], radix: int, pod: int
) -> Tree | Planes:
    """Build two levels if a spine switch of *radix* ports reaches all *leaves* (the port numbers of each), else more.

    *oversubscription*: bandwidth down over bandwidth up, of a leaf and of a spine; cores have none. *pod*: the number
    of leaves that share their spines in a network of more than two levels. Raises `ClusterError` if every uplink counts
    for itself and three levels do not suffice.
    """
    below = [(network.switch("leaf"), network.ports.bandwidth(ports)) for ports in leaves]
    plugged, leaf_of = np.concatenate(leaves), np.full(len(network.ports), NONE)
    leaf_of[plugged] = np.repeat([leaf for leaf, _ in below], list(map(len, leaves)))
    network.plug(plugged, leaf_of[plugged])
    groups = _pods(below, radix, pod)
    if network.routing.separate:
        if len(groups) > radix:
            raise ClusterError(
                f"three levels of {radix}-port switches join at most {radix} pods of {pod} leaves, not {len(groups)};"
                " give the fabric a larger radix, or take routing auto, which has further levels"
            )
        place = np.empty(len(network.ports), np.int64)
        place[plugged] = np.arange(len(place))
        return planes(network, leaf_of.tolist(), place.tolist(), groups, oversubscription)
    above: dict[int, int] = {}
    level, ratio = _level(network, "spine", groups, oversubscription[0], above), oversubscription[1]
    while len(level) > 1:
        # half of a switch's ports face down, unless it is at the top
        level, ratio = _level(network, "core", _pods(level, radix, max(2, radix // 2)), ratio, above), 1.0
    return Tree(leaf_of, above)


def _pods(below: list[tuple[int, float]], radix: int, pod: int) -> list[list[tuple[int, float]]]:
    """The switches that share those above them: all of *below* if *radix* ports reach them, else *pod* each; none of a
    single switch.
    """
    if len(below) == 1:
        return []
    return [below] if len(below) <= radix else [below[i : i + pod] for i in range(0, len(below), pod)]


def _level(
    network: Network, kind: str, groups: Sequence[Sequence[tuple[int, float]]], ratio: float, above: dict[int, int]
) -> list[tuple[int, float]]:
    """Add a switch of *kind* above each of *groups* (switch, bandwidth below it).

    Return these switches and their bandwidths.
    """
    level = []
    for group in groups:
        top = network.switch(kind)
        network.join_all((switch, top, bandwidth / ratio) for switch, bandwidth in group)
        above.update((switch, top) for switch, _ in group)
        level.append((top, sum(bandwidth for _, bandwidth in group) / ratio))
    return level


def ratios(oversubscription: float | list[float]) -> list[float]:
    """Return the oversubscription of leaves and of spines.

    Raises `ClusterError` for a list of other than one or two numbers.
    """
    given = oversubscription if isinstance(oversubscription, list) else [oversubscription]
    if not 1 <= len(given) <= 2:
        raise ClusterError(f"oversubscription is one number, or two: of leaves and of spines; not {len(given)}")
    return [*given, 1.0][:2]


def down_ports(radix: int, oversubscription: float) -> int:
    """Return how many of a leaf's *radix* ports face down.

    >>> down_ports(36, 1.0), down_ports(36, 2.0)
    (18, 24)
    """
    return max(1, int(radix * oversubscription / (1 + oversubscription)))


def even(items: int, groups: int) -> list[tuple[int, int]]:
    """Return (begin, end) of each group if *items* items are divided into *groups* as evenly as possible.

    >>> even(25, 2)
    [(0, 13), (13, 25)]
    """
    return list(pairwise(ceil(group * items / groups) for group in range(groups + 1)))


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
