"""A ring of GPUs: each is joined to the previous and the next one, and reaches others over PCIe."""

from __future__ import annotations

from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree


def ring(server: Server) -> Wiring:
    """Half of a GPU's links lead to each neighbour. Of two GPUs, all links lead to the other."""
    wiring = pcie_tree(server)
    gpus = wiring.gpus
    if len(gpus) == 2:
        wiring.join(*gpus, server.joint())
    elif len(gpus) > 2:
        for gpu, following in zip(gpus, (*gpus[1:], gpus[0]), strict=True):
            wiring.join(gpu, following, server.joint(2))
    return wiring
