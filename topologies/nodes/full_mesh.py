"""A full mesh: each pair of GPUs has links of its own, as on boards of four V100 or A100."""

from __future__ import annotations

from itertools import combinations

from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree


def full_mesh(server: Server) -> Wiring:
    """The links of a GPU are spread evenly over the others. V100 x 4: two links for each pair. A100 x 4: four."""
    wiring = pcie_tree(server)
    for pair in combinations(wiring.gpus, 2):
        wiring.join(*pair, server.joint(server.accelerators - 1))
    return wiring
