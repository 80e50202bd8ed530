"""The hybrid cube mesh of DGX-1 with V100: eight GPUs, some pairs joined by two links, some by one, some not at all."""

from __future__ import annotations

from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree

SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
"""Pairs joined by one link and by two, as ``nvidia-smi topo -m`` prints NV1 and NV2 on DGX-1V and p3.16xlarge; NVIDIA,
"DGX-1 With Tesla V100 System Architecture" (WP-08437-002), figure 4."""


WHOLE = 8
"""Accelerators of a whole one."""


def hybrid_cube_mesh(server: Server) -> Wiring:
    """Pairs without a link communicate over PCIe, because GPUs do not forward.

    Fewer than eight accelerators are the first of it: four are one half, in which every pair has a link, as in
    p3.8xlarge. Raises `ClusterError` for more.
    """
    if server.accelerators > WHOLE:
        raise ClusterError(f"a hybrid cube mesh has at most {WHOLE} accelerators, not {server.accelerators}")
    wiring = pcie_tree(server)
    for count, pairs in enumerate((SINGLE, DOUBLE), start=1):
        for a, b in ((a, b) for a, b in pairs if max(a, b) < server.accelerators):
            wiring.join(f"gpu {a}", f"gpu {b}", server.bundle(count))
    return wiring
