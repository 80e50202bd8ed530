"""The network of a scenario: library, algorithms, and what changes it from outside.

Everything that prices or simulates communication of a scenario takes its network from here: runs, estimates of plans,
sensitivities, planned recomputation, memory and validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from clustersim.scenarios.build.derived import at_slowest_clock
from clustersim.scenarios.specification.network import BackgroundTraffic
from clustersim.scenarios.specification.specification import Specification
from clustersim.simulator.engine.setup import BandwidthChange, NetworkConditions, Traffic
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import is_tcp
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.network.library.calibration_file import transport
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.tuner import (
    is_own,
    prove_own,
    ranks_allowed,
    thread_blocks,
    usable_algorithms,
)
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ClusterError, SimulatorError
from clustersim.simulator.reading.lookup import nearest
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.schedule import Schedule


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
        from clustersim.simulator.network.library.nccl import tables_of

        version = tables_of(section.version)
    found = transport(section.transport, cluster, version)
    if section.transport == "nccl":
        from clustersim.simulator.network.library.nccl import as_release

        found = as_release(found, section.version)
    nvls_tree = section.nvls_tree and found.name == "nccl"
    if nvls_tree:
        from clustersim.simulator.network.library.nccl import NVLS_VERSION

        nvls_tree = found.version == NVLS_VERSION
    if section.sharp or nvls_tree:
        from clustersim.simulator.network.library.nccl_tables import with_networks

        found = with_networks(found, sharp=section.sharp, nvls_tree=nvls_tree)
    if section.sockets > 1:
        found = replace(found, tcp_sockets=section.sockets)
    own = benchmark is not None and benchmark.driver == "processes"
    return replace(found, handover=0.0) if own else found


ADDING = "ib_hdr", "ib_ndr", "ib_xdr"
"""Kinds of links whose switches add vectors of any size (streaming aggregation). Those of EDR add small ones only
(Graham et al., ISC 2020)."""


def check_network(specification: Specification, cluster: Cluster, document: Document) -> None:
    """Raise `ScenarioError` if the network section needs NICs or switches that *cluster* does not have."""
    _check_sharp(specification, cluster, document)
    if specification.network.sockets > 1 and not is_tcp(cluster.links.distinct):
        raise document.error(("network", "sockets"), "needs NICs that speak TCP; give cluster.node.nic protocol: tcp")


def _check_sharp(specification: Specification, cluster: Cluster, document: Document) -> None:
    """Raise `ScenarioError` if SHARP is wanted of switches that do not add."""
    if not specification.network.sharp:
        return
    node, topology = cluster.vertices.node, cluster.topology
    outside = (node[topology.source] == NONE) | (node[topology.target] == NONE)
    kinds = {cluster.links[number].kind for number in outside.nonzero()[0].tolist()}
    wrong = sorted(kind for kind in kinds if not kind.startswith(ADDING))
    if wrong or not kinds:
        found = f"nodes are joined by {', '.join(wrong)}" if wrong else "there is one node"
        raise document.error(
            ("network", "sharp"), f"needs InfiniBand switches that add ({', '.join(ADDING)}), but {found}"
        )


def conditions(specification: Specification, cluster: Cluster, document: Document) -> NetworkConditions:
    """Return what changes the links of *cluster*.

    Raises `ScenarioError` at a link or device that there is not, and at a rate that no link on the way carries.
    """
    traffic = enumerate(specification.network.background)
    return NetworkConditions(
        list(_changes(specification, cluster, document)), [_traffic(*one, cluster, document) for one in traffic]
    )


def _changes(specification: Specification, cluster: Cluster, document: Document) -> Iterator[BandwidthChange]:
    section = specification.simulation.variation
    for place, one in enumerate(section.links if section else ()):
        for ends in (one.link, one.link[::-1]):
            try:
                normal = cluster.links[cluster.number(*ends)].bandwidth
            except KeyError:
                path = ("simulation", "variation", "links", place, "link")
                raise document.error(path, f"there is no link from {ends[0]} to {ends[1]}") from None
            for number in range(one.times):
                begin = one.begin + number * (one.every or 0.0)
                yield BandwidthChange(begin, *ends, normal * one.bandwidth)
                yield BandwidthChange(begin + one.duration, *ends, normal)


def _traffic(place: int, given: BackgroundTraffic, cluster: Cluster, document: Document) -> Traffic:
    path = ("network", "background", place)
    for key, device in (("from", given.source), ("to", given.target)):
        if device not in cluster.devices:
            near = ", ".join(nearest(device, list(cluster.devices))[:4])
            raise document.error((*path, key), f'{cluster.name} has no device "{device}"; near it are: {near}')
    try:
        route = cluster.route(given.source, given.target)
    except ClusterError as error:
        raise document.error(path, str(error)) from None
    slowest = min(route, key=lambda number: cluster.links[number].bandwidth)
    bandwidth = cluster.links[slowest].bandwidth
    if given.rate > bandwidth:
        source, target = cluster.ends[slowest]
        limit = f"the link from {source} to {target} carries {show(bandwidth, 'bandwidth')}"
        raise document.error(
            (*path, "rate"), f"{show(given.rate, 'bandwidth')} cannot be sent: {limit}; give at most that"
        )
    return Traffic(given.source, given.target, given.rate, given.begin, inf if given.end is None else given.end)


def check_algorithms(schedule: Schedule, network: Communicator, document: Document) -> None:
    """Check that every group of *schedule* can use the algorithms of *network*, and that the user's own are right.

    A group may lack switches, or have a number of ranks that the algorithm is not for. The user's own are executed on
    symbolic chunks. Raises `ScenarioError` at the algorithm. The choices of the library are always usable.
    """
    library, chosen = network.transport, set(network.algorithms.values()) - {"auto"}
    checked = {*library.switch_only, *library.across_only, *filter(ranks_allowed, chosen), *filter(is_own, chosen)}
    if not chosen & checked:
        return
    for axis, kind, requested, nbytes, root in sorted(_collectives(schedule)):
        for group in schedule.mesh.axes[axis].groups:
            if len(group) < 2:
                continue
            topology = network.topology(group)
            asked = library, network.algorithms, family(axis), kind, requested, topology.properties
            try:
                for name in usable_algorithms(*asked):
                    if is_own(name):
                        prove_own(name, kind, topology.group, nbytes, root)
                    _check_thread_blocks(name, network)
            except SimulatorError as error:
                raise document.error(("network", "algorithms", _key(network, family(axis), kind)), str(error)) from None


def _check_thread_blocks(name: str, network: Communicator) -> None:
    """Raise `SimulatorError` if a GPU does not hold all thread blocks of the algorithm *name* at once.

    Thread blocks wait for each other, and each has an SM of its own, so one that has not started stops the others.
    """
    gpu = network.cluster.accelerator(network.devices[0])
    if gpu.sms and (wanted := thread_blocks(name)) > gpu.sms:
        raise SimulatorError(
            f"{name} has {wanted} thread blocks on a GPU, and {gpu.name} holds {gpu.sms} at once, one on each SM; "
            "give an algorithm with fewer channels"
        )


def _collectives(schedule: Schedule) -> set[tuple[str, str, str, float, int]]:
    """Return the distinct (axis, kind, requested algorithm, bytes, root) of the collectives of *schedule*."""
    ops = (op for program in schedule.programs for op in program.distinct())
    return {
        (op.over, op.kind, op.algorithm, op.nbytes, op.root) for op in ops if isinstance(op, Collective) and op.nbytes
    }


def _key(network: Communicator, axis: str, kind: str) -> str:
    """Return the key of the algorithm that is chosen for *kind* over *axis*."""
    own = f"{axis}.{kind}"
    return own if network.algorithms.get(own, "auto") != "auto" else kind
