"""A PCIe tree: GPUs have no links of their own and reach each other through PCIe switches and sockets."""

from __future__ import annotations

from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree


def pcie(server: Server) -> Wiring:
    """The tree of `Server`. *intra*, if given, is the link from a GPU upwards."""
    return pcie_tree(server, server.intra)
