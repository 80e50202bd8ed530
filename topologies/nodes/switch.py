"""A crossbar of NVSwitches: every GPU reaches every other with all of its links at once."""

from __future__ import annotations

from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree


def switch(server: Server) -> Wiring:
    """All links of a GPU end at the NVSwitches, which are one vertex: a GPU spreads its traffic over all of them
    (NVIDIA, "NVSwitch" technical overview).
    """
    wiring = pcie_tree(server)
    centre = wiring.add("nvswitch", 0)
    for gpu in wiring.gpus:
        wiring.join(gpu, centre, server.joint())
    return wiring
