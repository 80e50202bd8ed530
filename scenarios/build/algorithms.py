"""The algorithms that a scenario chooses for its collectives, checked against the groups of its ranks."""

from __future__ import annotations

from simulator.document import Document
from simulator.errors import SimulatorError
from simulator.network.transport.communicator import Communicator
from simulator.network.transport.tuner import usable_algorithms
from simulator.schedule import Collective, Schedule
from simulator.schedule.mesh import family


def check_algorithms(schedule: Schedule, network: Communicator, document: Document) -> None:
    """Check that every group of *schedule* has the switches that the algorithms of *network* need.

    Raises `ScenarioError` at the algorithm that a group cannot use. The choices of the library are always usable.
    """
    picky = {*network.transport.switch_only, *network.transport.across_only}
    if not set(network.algorithms.values()) & picky:
        return
    for axis, kind, requested in sorted(_collectives(schedule)):
        for group in schedule.mesh.axes[axis].groups:
            if len(group) < 2:
                continue
            properties = network.topology(group).properties
            try:
                usable_algorithms(network.transport, network.algorithms, family(axis), kind, requested, properties)
            except SimulatorError as error:
                raise document.error(("network", "algorithms", _key(network, family(axis), kind)), str(error)) from None


def _collectives(schedule: Schedule) -> set[tuple[str, str, str]]:
    """Return the distinct (axis, kind, requested algorithm) of the collectives of *schedule*."""
    ops = (op for program in schedule.programs for op in program.ops)
    return {(op.over, op.kind, op.algorithm) for op in ops if isinstance(op, Collective) and op.nbytes}


def _key(network: Communicator, axis: str, kind: str) -> str:
    """Return the key of the algorithm that is chosen for *kind* over *axis*."""
    own = f"{axis}.{kind}"
    return own if network.algorithms.get(own, "auto") != "auto" else kind
