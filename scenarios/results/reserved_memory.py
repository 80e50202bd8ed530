"""Reserved memory: bytes that a process holds on its GPU beyond the tensors of its schedule.

These are CUDA's context with the loaded kernels (given by the software stack) and the buffers of the communication
library (given by the transport); their sources are stated there. Fragmentation is what PyTorch's caching allocator
reserves for activations beyond their bytes: free parts of blocks that it has split. States are allocated once and leave
no gaps. Its share of the reserved memory is an average (`Software`); it depends on the history of a run.

``torch.cuda.max_memory_allocated`` is the peak of the tensors, ``max_memory_reserved`` that and fragmentation, and
nvidia-smi shows all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.network.transport.calibration import transport
from simulator.network.transport.communicator import Communicator
from simulator.schedule import Collective, Schedule

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
    """Return the bytes on the GPU of *rank* beyond those that *schedule* allocates.

    They are ``context``, ``communication`` and ``fragmentation``. *devices*: the GPU or host of each rank, those of
    *scenario* if not given. *network*: the communicator on them, if there is one. *activations*: bytes of activations
    at the peak.
    """
    devices = scenario.derived.devices if devices is None else devices
    library, cluster = scenario.specification.network.transport, scenario.cluster()
    communicator = network or Communicator(cluster, devices, transport(library, cluster))
    used = dict.fromkeys(op.over for op in schedule.program(rank).distinct() if isinstance(op, Collective))
    groups = (schedule.mesh.axes[name] for name in used)
    places = ((axis, axis.place(rank)) for axis in groups)
    held = sum(communicator.buffer_bytes(axis.groups[place[0]]) for axis, place in places if place)
    share = scenario.software.fragmentation
    return {
        "context": scenario.software.context_bytes,
        "communication": held,
        "fragmentation": activations * share / (1.0 - share),
    }
