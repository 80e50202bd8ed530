"""`python -m tests.benchmarks.crossing`: a ring all-reduce of 1 GiB over 1,024 GPUs, a concurrent message, a slow link.

All transfers of the ring advance together, so folding leaves three ranks: sender, receiver and one for all others.
"""

from __future__ import annotations

import sys

from clustersim import topologies
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Collective, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate

GPUS, NODE = 1024, 8
SENDER, RECEIVER = 3, 515
"""Ranks on two distant nodes; their message and the ring share cables."""

SLOW = ("nic 80", "leaf 0", 0.5)
"""The ends of a slow cable of the ring, and the factor on its bandwidth."""


def crossing(*, fold: bool = True) -> Timeline:
    """The timeline of the run."""
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": GPUS // NODE})
    algorithms = {"all_reduce": "ring"}
    return simulate(schedule(), cluster.degraded([SLOW]), transport=nccl(), algorithms=algorithms, fold=fold)


def schedule() -> Schedule:
    """An all-reduce over an axis of all ranks, and a message over an axis of sender and receiver."""
    mesh = Mesh(GPUS, {"dp": Axis((tuple(range(GPUS)),)), "pp": Axis(((SENDER, RECEIVER),))})
    reduce = Collective(name="reduce", kind="all_reduce", over="dp", nbytes=2**30)
    send = Send(name="send", over="pp", peer=1, nbytes=2**30, stream="out")
    receive = Recv(name="receive", over="pp", peer=0, nbytes=2**30, stream="in")
    programs = Program("all", (reduce,)), Program("sends", (send, reduce)), Program("receives", (receive, reduce))
    special = {SENDER: 1, RECEIVER: 2}
    return Schedule(mesh, programs, tuple(special.get(rank, 0) for rank in range(GPUS)))


if __name__ == "__main__":
    timeline = crossing(fold="--unfolded" not in sys.argv)
    print(f"{timeline.makespan:.6f} s, {len(timeline.columns)} representatives")
