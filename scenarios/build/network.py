"""The network of a scenario: the library with what its section asks for, on the devices of its ranks.

Everything that prices or simulates communication of a scenario takes its network from here: runs, estimates of plans,
sensitivities, planned recomputation, memory and validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scenarios.build.clocks import at_slowest_clock
from scenarios.specification.specification import Specification
from simulator.cluster import Cluster
from simulator.network.transport.calibration import transport
from simulator.network.transport.communicator import Communicator
from simulator.network.transport.transport import Transport


def network_of(
    specification: Specification,
    cluster: Cluster,
    devices: Sequence[str],
    *,
    library: Transport | None = None,
    together: Sequence[str] | None = None,
) -> Communicator:
    """Return the network between *devices* of *cluster*, one for each rank, as *specification* describes it.

    All GPUs are as slow as the slowest of *together*, by default of *devices*. *library*: replaces `library_of`.
    """
    section, on = specification.network, at_slowest_clock(cluster, together or devices)
    return Communicator(on, devices, library or library_of(specification, on), section.fidelity, section.algorithms)


def library_of(specification: Specification, cluster: Cluster) -> Transport:
    """Return the library of *specification* on *cluster*. NCCL is of the version that knows the GPUs of *cluster*.

    A benchmark by processes has no handover between the streams of torch.
    """
    section, benchmark = specification.network, specification.collective
    version = None
    if section.version:
        from simulator.network.transport.nccl import tables_of

        version = tables_of(section.version)
    found = transport(section.transport, cluster, version)
    nvls_tree = section.nvls_tree and found.name == "nccl"
    if nvls_tree:
        from simulator.network.transport.nccl import NVLS_VERSION

        nvls_tree = found.version == NVLS_VERSION
    if section.sharp or nvls_tree:
        from simulator.network.transport.networks.adding import with_networks

        found = with_networks(found, sharp=section.sharp, nvls_tree=nvls_tree)
    if section.sockets > 1:
        found = replace(found, tcp_sockets=section.sockets)
    own = benchmark is not None and benchmark.driver == "processes"
    return replace(found, handover=0.0) if own else found
