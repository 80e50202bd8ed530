"""The MI250X node of Frontier and LUMI: eight dies in four packages, and a NIC at each package."""

from __future__ import annotations

from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies.nodes._server import Server, Wiring, attach_nics, pcie_tree, spread

PACKAGE = ((0, 1), (2, 3), (4, 5), (6, 7))
DOUBLE = ((0, 6), (2, 4))
SINGLE = ((0, 2), (4, 6), (1, 3), (1, 5), (3, 7), (5, 7))
"""The links between dies: RCCL, tools/topo_expl/models/topo_8p_90a.xml. Four links inside a package (200 GB/s), one or
two between packages (50-100 GB/s): OLCF, Frontier User Guide. A die has eight links. After four in its package and one
to the host, three are left on even dies and two on odd ones, whose eighth is the PCIe link to a NIC (AMD, CDNA 2
whitepaper).
"""


def infinity_fabric(server: Server) -> Wiring:
    """Dies forward messages for others. Raises `ClusterError` unless there are 8 GPUs (dies) and at most 4 NICs."""
    if server.accelerators != 8:
        raise ClusterError(f"an Infinity Fabric node has 8 accelerators (dies), not {server.accelerators}")
    if len(server.ports) > len(PACKAGE):
        raise ClusterError(f"an Infinity Fabric node has at most 4 nics, one at each package, not {server.nics}")
    wiring = pcie_tree(server, nics=False)
    wiring.through_gpus = True
    for count, pairs in ((4, PACKAGE), (2, DOUBLE), (1, SINGLE)):
        for a, b in pairs:
            wiring.join(f"gpu {a}", f"gpu {b}", server.bundle(count))
    attach_nics(wiring, spread([f"gpu {odd}" for _, odd in PACKAGE], len(server.ports)))
    return wiring
