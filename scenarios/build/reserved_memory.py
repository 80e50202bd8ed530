"""Reserved memory: bytes that a process holds on its GPU beyond the tensors of its schedule.

These are CUDA's context with the loaded kernels (given by the software stack) and the buffers of the communication
library (given by the transport); their sources are stated there. Fragmentation is what PyTorch's caching allocator
reserves for activations beyond their bytes: free parts of blocks that it has split. States are allocated once and leave
no gaps. Its share of the reserved memory is an average (`Software`); it depends on the history of a run.

``torch.cuda.max_memory_allocated`` is the peak of the tensors, ``max_memory_reserved`` that and fragmentation, and
nvidia-smi shows all of it.
"""

from __future__ import annotations

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.schedule import Schedule


def reserved_bytes(
    schedule: Schedule, rank: int, network: Communicator, software: Software, activations: float = 0.0
) -> dict[str, float]:
    """Return the bytes on the GPU of *rank* beyond those that *schedule* allocates.

    They are ``context``, ``communication`` and ``fragmentation``. *activations*: bytes of activations at the peak.
    """
    used = dict.fromkeys(op.over for op in schedule.program(rank).distinct() if isinstance(op, Collective))
    groups = (schedule.mesh.axes[name] for name in used)
    places = ((axis, axis.place(rank)) for axis in groups)
    return {
        "context": software.context_bytes,
        "communication": sum(network.buffer_bytes(axis.groups[place[0]]) for axis, place in places if place),
        "fragmentation": activations * software.fragmentation / (1.0 - software.fragmentation),
    }
