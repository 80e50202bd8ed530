"""The communication library of a scenario, with what its network section asks for."""

from __future__ import annotations

from dataclasses import replace

from scenarios.specification.network import Network
from simulator.cluster import Cluster
from simulator.network.transport.calibration import transport
from simulator.network.transport.networks.adding import with_networks
from simulator.network.transport.transport import Transport


def communication_library(network: Network, cluster: Cluster | None = None) -> Transport:
    """Return the library of *network*. NCCL is of the version that knows the GPUs of *cluster*, if given."""
    found = transport(network.transport, cluster)
    if network.sharp or network.nvls_tree:
        found = with_networks(found, sharp=network.sharp, nvls_tree=network.nvls_tree)
    return replace(found, tcp_sockets=network.sockets) if network.sockets > 1 else found
