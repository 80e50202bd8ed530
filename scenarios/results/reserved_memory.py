"""The reserved memory of a scenario's GPUs (`scenarios.build.memory.reserved_memory`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scenarios.build.memory.reserved_memory import reserved_bytes
from scenarios.build.network import network_of
from simulator.network.transport.communicator import Communicator
from simulator.schedule import Schedule

if TYPE_CHECKING:
    from scenarios.build.built import BuiltScenario


def reserved_memory(
    scenario: BuiltScenario,
    schedule: Schedule,
    rank: int,
    devices: Sequence[str] | None = None,
    network: Communicator | None = None,
    activations: float = 0.0,
) -> dict[str, float]:
    """Return the bytes on the GPU of *rank* beyond those that *schedule* allocates, as `reserved_bytes` does.

    *devices*: the GPU or host of each rank, those of *scenario* if not given. *network*: the communicator on them, if
    there is one.
    """
    devices = scenario.derived.devices if devices is None else devices
    communicator = network or network_of(scenario.specification, scenario.cluster(), devices)
    return reserved_bytes(schedule, rank, communicator, scenario.software, activations)
