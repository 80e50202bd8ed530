"""A slice of TPUs: chips joined to their neighbours in each dimension, and the last with the first."""

from __future__ import annotations

from itertools import product
from math import prod

from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.reading.quantities import Count, Flag
from clustersim.topologies.fabrics.torus import walk
from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree


def torus(server: Server, dims: list[Count], wrap: Flag = True) -> Wiring:
    """*dims*: chips in each dimension, such as [16, 16]; without *wrap* the last is not joined with the first.

    A chip has a link for each direction of each dimension, and forwards messages of others, which go in dimension order
    (Jouppi et al. 2023, arXiv:2304.01433, section 2). In a dimension of two chips one link joins them. Raises
    `ClusterError` if *dims* do not make as many chips as the server has.
    """
    if prod(dims) != server.accelerators:
        made, chips = prod(dims), server.accelerators
        raise ClusterError(
            f"dims {dims} make {made} chips, but the node has {chips}; try dims {_even(chips, len(dims))}"
        )
    wiring = pcie_tree(server)
    places = list(product(*map(range, dims)))
    name = {place: f"gpu {number}" for number, place in enumerate(places)}
    place_of = {gpu: place for place, gpu in name.items()}
    for place in places:
        for axis, size in enumerate(dims):
            last = place[axis] == size - 1
            if size > 1 and not (last and (size == 2 or not wrap)):
                following = (*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])
                wiring.join(name[place], name[following], server.bundle(1))

    def route(source: str, target: str) -> tuple[str, ...]:
        steps = walk(place_of[source], place_of[target], dims if wrap else [2 * size for size in dims])
        return tuple(name[step] for step in steps)

    wiring.walk = route
    return wiring


def _even(chips: int, dimensions: int) -> list[int]:
    """The most even sizes of so many *dimensions* that make *chips*, the smallest first.

    >>> _even(32, 2), _even(128, 3)
    ([4, 8], [4, 4, 8])
    """
    if dimensions == 1:
        return [chips]
    first = max(size for size in range(1, round(chips ** (1 / dimensions)) + 1) if chips % size == 0)
    return [first, *_even(chips // first, dimensions - 1)]
