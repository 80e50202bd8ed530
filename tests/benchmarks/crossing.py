"""`python -m tests.benchmarks.crossing` sums 1 GiB around 1,024 GPUs while one message crosses, over a slow link.

All transfers of the ring advance together, so folding leaves it three ranks: the two that talk, and any other.
"""

from __future__ import annotations

import sys

import topologies
from simulator.engine.simulate import simulate
from simulator.network.transport.nccl import nccl
from simulator.schedule import Collective, Program, Recv, Schedule, Send
from simulator.schedule.mesh import Axis, Mesh
from simulator.timeline import Timeline

GPUS, NODE = 1024, 8
SENDER, RECEIVER = 3, 515
"""Ranks of two nodes that are far from each other; their message lies on the same cables as the ring."""

SLOW = ("nic 80", "leaf 0", 0.5)
"""A cable of the ring that is slow, and by what factor."""


def crossing(*, fold: bool = True) -> Timeline:
    """What happens."""
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": GPUS // NODE})
    algorithms = {"all_reduce": "ring"}
    return simulate(schedule(), cluster.degraded([SLOW]), transport=nccl(), algorithms=algorithms, fold=fold)


def schedule() -> Schedule:
    """An axis of all ranks and an axis of the two that talk beside it."""
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
