"""An algorithm from a file: XML of MSCCL or JSON of MSCCL++, proved when it is read."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError

if TYPE_CHECKING:
    from clustersim.simulator.network.algorithm_files.chunks import ChunkTraffic


@dataclass(frozen=True, eq=False)
class FileAlgorithm:
    """The algorithm of the file at *path* for the collective *kind* over *ranks*.

    *thread_blocks*: of one GPU, at most. *switched*: whether switches add or copy. *traffic* (bytes of the vector):
    its messages by round.
    """

    path: str
    kind: str
    ranks: int
    thread_blocks: int
    switched: bool
    traffic: Callable[[float], ChunkTraffic]

    def ranks_allowed(self, ranks: int) -> bool:
        """Return whether it is for so many *ranks*."""
        return ranks == self.ranks

    def __call__(self, group: Group, nbytes: float) -> list[Step]:
        """Return the steps for *nbytes* of the full vector over *group*."""
        if group.size != self.ranks:
            raise SimulatorError(f"{self.path} is for {self.ranks} ranks, not {group.size}")
        return self.traffic(nbytes).steps(nbytes)


def is_file(name: str) -> bool:
    """Return whether *name* is the path of an algorithm file."""
    return name.endswith((".xml", ".json"))


@lru_cache(maxsize=64)
def algorithm(path: str) -> FileAlgorithm:
    """Return the algorithm of the file at *path*. Raises `SimulatorError` if it is wrong."""
    if path.endswith(".json"):
        from clustersim.simulator.network.algorithm_files import mscclpp

        plan = mscclpp.MscclppPlan(path)
        return FileAlgorithm(path, plan.kind, plan.ranks, plan.thread_blocks, plan.switched, plan.traffic)
    from clustersim.simulator.network.algorithm_files import msccl

    program = msccl.MscclProgram(path)
    traffic = program.traffic
    return FileAlgorithm(path, program.kind, len(program.gpus), program.thread_blocks, False, lambda _: traffic)
