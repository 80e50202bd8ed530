"""The algorithms that a scenario chooses for its collectives, checked against the groups of its ranks."""

from __future__ import annotations

from simulator.document import Document
from simulator.errors import SimulatorError
from simulator.network.transport.communicator import Communicator
from simulator.network.transport.tuner import is_own, prove_own, ranks_allowed, usable_algorithms
from simulator.schedule import Collective, Schedule
from simulator.schedule.mesh import family


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
                for name in filter(is_own, usable_algorithms(*asked)):
                    prove_own(name, kind, topology.group, nbytes, root)
            except SimulatorError as error:
                raise document.error(("network", "algorithms", _key(network, family(axis), kind)), str(error)) from None


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
