"""A torus of routers, one for each node: neighbours in each dimension are joined, and the last with the first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import isqrt, prod

from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.reading.quantities import Count
from clustersim.topologies.fabrics._network import FabricRouter, Network, Port


def torus(network: Network, dims: list[Count] | None = None) -> FabricRouter:
    """*dims*: routers in each dimension, ``[4, 4]`` or ``[8, 8, 4]``. Default: two dimensions, as nearly square as
    possible.

    Messages go in dimension order, the shorter way round. If both ways are equal, routers of even coordinate go up and
    the others down. In a dimension of size two both links join the same pair and are one bundle. Dally and Towles,
    "Principles and Practices of Interconnection Networks", chapters 5 and 8.
    """
    nodes = network.nodes
    dims = dims or nearly_square(len(nodes))
    if prod(dims) != len(nodes):
        raise ClusterError(f"dims {dims} make {prod(dims)} routers, but there are {len(nodes)} nodes; they must agree")
    places = list(product(*map(range, dims)))
    router = {place: network.switch("router") for place in places}
    place_of = {ports[0].node: place for ports, place in zip(nodes, places, strict=True)}
    for ports, place in zip(nodes, places, strict=True):
        network.plug(ports, router[place])
    for place in places:
        for axis, size in enumerate(dims):
            if size > 2 or (size == 2 and place[axis] == 0):
                neighbour = _moved(place, axis, 1, size)
                network.join(router[place], router[neighbour], network.cable.bandwidth * (2 if size == 2 else 1))

    def route(source: Port, target: Port) -> list[int]:
        return [router[place] for place in walk(place_of[source.node], place_of[target.node], dims)]

    return route


def walk(source: tuple[int, ...], target: tuple[int, ...], dims: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the places from *source* to *target*, ends included, in dimension order.

    >>> walk((0, 0), (3, 2), [4, 4])
    [(0, 0), (3, 0), (3, 1), (3, 2)]
    """
    places = [source]
    for axis, size in enumerate(dims):
        start = source[axis]
        forward = (target[axis] - start) % size
        up = forward < size - forward or (2 * forward == size and start % 2 == 0)
        for _ in range(min(forward, size - forward)):
            places.append(_moved(places[-1], axis, 1 if up else -1, size))
    return places


def nearly_square(number: int) -> list[int]:
    """Return the two factors of *number* that are nearest to each other.

    >>> nearly_square(12)
    [3, 4]
    """
    short = next(factor for factor in range(isqrt(number), 0, -1) if number % factor == 0)
    return [short, number // short]


def _moved(place: tuple[int, ...], axis: int, step: int, size: int) -> tuple[int, ...]:
    return (*place[:axis], (place[axis] + step) % size, *place[axis + 1 :])
