"""Random schedules in which nothing is contended, each rank with a program of its own."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Delay, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform

SECONDS = st.sampled_from([0.0, 1.0, 1.0, 2.5])
SIZES = (2, 2)

UNSERVED = ("collective", "message", "delay")
ALL = (*UNSERVED, "buffered", "server")
"""Collectives on one axis, messages on the other, delays, and what is served one by one."""

Draw = Any


@st.composite
def schedules(draw: Draw, kinds: Sequence[str] = ALL) -> Schedule:
    """Rounds of computation on two axes, each with one of *kinds* beside it."""
    mesh = Mesh.regular(dict(zip(("tp", "pp"), SIZES, strict=True)))
    rounds = draw(st.lists(st.tuples(st.sampled_from(kinds), st.booleans()), min_size=1, max_size=5))
    programs = tuple(
        Program(f"rank {rank}", tuple(op for n, one in enumerate(rounds) for op in _round(draw, mesh, rank, n, *one)))
        for rank in range(mesh.world_size)
    )
    return Schedule(mesh, programs, tuple(range(mesh.world_size)))


def _round(draw: Draw, mesh: Mesh, rank: int, number: int, kind: str, apart: bool) -> list[Op]:
    ops: list[Op] = [Compute(name=f"work {number}", kernels=(measured(draw(SECONDS)),))]
    stream, after = ("apart", (f"work {number}",)) if apart else ("compute", ())
    name, waited = f"{kind} {number}", True
    match kind:
        case "collective":
            ops.append(
                Collective(name=name, kind="all_reduce", over="tp", nbytes=1e9, stream=stream, after=after, layer="net")
            )
        case "delay":
            ops.append(Delay(name=name, seconds=draw(SECONDS), stream=stream, after=after))
        case "server":
            seconds = (measured(draw(st.sampled_from([1.0, 2.5]))),)
            ops.append(Compute(name=name, kernels=seconds, server="store", stream=stream, after=after))
        case _:
            place = mesh.axes["pp"].place(rank)
            assert place is not None
            common: dict[str, Any] = {"over": "pp", "nbytes": 1e9, "action": Action("F", 0, number)}
            peer = 1 - place[1]
            ops.append(
                Send(name=f"send {number}", peer=peer, stream="to", after=after, buffered=kind == "buffered", **common)
            )
            ops.append(Recv(name=name, peer=peer, stream="from", after=after if draw(st.booleans()) else (), **common))
            waited = draw(st.booleans())
    if waited:
        ops.append(Compute(name=f"rest {number}", kernels=(measured(draw(SECONDS)),), after=(name,)))
    return ops


ENGINES = st.sampled_from(["simpy", "compiled"])


def run(schedule: Schedule, engine: str = "simpy") -> Timeline:
    """*schedule* on as many GPUs, each transfer as fast as if it were alone."""
    check(schedule)
    cluster = uniform(gpus=schedule.mesh.world_size, hosts=1, bandwidth=1e9, latency=0.0)
    return simulate(schedule, cluster, fidelity="alpha_beta", fold=False, engine=engine)
