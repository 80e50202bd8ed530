"""A folded Clos network: leaves below spines below cores. A route goes up as far as needed and down again.

Where one level of cores does not reach all spines, further levels of cores are above it: switches of 128 ports join
524,288 NICs in three levels and 33,554,432 in four (2 (k/2)^n ports in n levels of k-port switches, Al-Fares et al.,
"A Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008, for n = 3).

The equal-cost uplinks of a switch are one bundle with the sum of their bandwidths, so the switches at their upper ends
are one vertex. Traffic is spread over them evenly. Where the routing is by connection or by destination, every uplink
counts for itself instead (`topologies.planes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import numpy as np

from simulator.cluster.vertices import NONE
from simulator.errors import ClusterError
from simulator.hashing import Indices
from topologies.network import Network, Tree
from topologies.planes import Planes, planes


def clos(
    network: Network, leaves: Sequence[Indices], oversubscription: Sequence[float], radix: int, pod: int
) -> Tree | Planes:
    """Build two levels if a spine switch of *radix* ports reaches all *leaves* (the port numbers of each), else more.

    *oversubscription*: bandwidth down over bandwidth up, of a leaf and of a spine; cores have none. *pod*: the number
    of leaves that share their spines in a network of more than two levels. Raises `ClusterError` if every uplink counts
    for itself and three levels do not suffice.
    """
    leaf_of = np.full(len(network.ports), NONE)
    below: list[tuple[int, float]] = []
    for ports in leaves:
        leaf = network.switch("leaf")
        network.plug(ports, leaf)
        leaf_of[ports] = leaf
        below.append((leaf, network.ports.bandwidth(ports)))
    groups = _pods(below, radix, pod)
    if network.routing.separate:
        if len(groups) > radix:
            raise ClusterError(
                f"three levels of {radix}-port switches join at most {radix} pods of {pod} leaves, not {len(groups)};"
                " give the fabric a larger radix, or take routing auto, which has further levels"
            )
        place = np.empty(len(network.ports), np.int64)
        place[np.concatenate(leaves)] = np.arange(len(place))
        return planes(network, leaf_of.tolist(), place.tolist(), groups, oversubscription)
    above: dict[int, int] = {}
    level, ratio = _level(network, "spine", groups, oversubscription[0], above), oversubscription[1]
    while len(level) > 1:
        # half of a switch's ports face down, unless it is at the top
        level, ratio = _level(network, "core", _pods(level, radix, max(2, radix // 2)), ratio, above), 1.0
    return Tree(leaf_of.tolist(), above)


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
        for switch, bandwidth in group:
            network.join(switch, top, bandwidth / ratio)
            above[switch] = top
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
