"""Launches that block: with CUDA_LAUNCH_BLOCKING=1 the host waits for each kernel before it launches the next.

So the kernels of a GPU run one after the other, those of NCCL's collectives too, whatever streams the software gives
them (CUDA C++ Programming Guide, "Environment Variables"). Scripts of large runs set it against deadlocks of NCCL
(bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md). Messages between two ranks, and copies from
and to the host, keep their streams: the software waits for the former by itself, and the latter are no kernels.
"""

from collections.abc import Iterator

from clustersim.simulator.schedule.ops import Collective, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import COMPUTE


def one_stream(schedule: Schedule) -> Schedule:
    """Return *schedule* with the collectives of GPUs among the computations, in order of issue."""
    return schedule.map_programs(_blocked)


def _blocked(program: Program) -> Program:
    beside = {op.name for op in program.distinct(Collective) if op.stream != COMPUTE}

    def moved(op: Op) -> Iterator[Op]:
        yield changed(op, stream=COMPUTE)

    return program.map_ops(moved, beside) if beside and program.on == "gpu" else program
