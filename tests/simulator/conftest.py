"""Timelines made without the engine: every op takes a given time, links are drawn by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping

import networkx as nx
import numpy as np
import pytest

from clustersim.simulator.analysis.timeline import (
    NO_COMMUNICATION,
    Columns,
    FlowLinks,
    LinkUse,
    RateIntervals,
    Timeline,
)
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import Kernel, measured
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

TRANSFER_RATE = 1e9
"""Bytes/s of every communication of these timelines."""


def played(schedule: Schedule, cluster: Cluster | None = None, slow: dict[int, float] | None = None) -> Timeline:
    """*schedule* with computations as long as they say and transfers at `TRANSFER_RATE`, no link shared."""
    ended: list[dict[str, float]] = [{} for _ in schedule.program_of]
    queues = [
        {name: list(ops) for name, ops in schedule.program(rank).streams().items()} for rank in ranks_of(schedule)
    ]
    free = [dict.fromkeys(queue, 0.0) for queue in queues]
    numbers = [{op.name: number for number, op in enumerate(program.ops)} for program in schedule.programs]
    rows: list[list[tuple[int, int, float, float, float]]] = [[] for _ in schedule.program_of]
    communications: list[dict[int, int]] = [{} for _ in schedule.program_of]
    uses: list[tuple[float, float, Mapping[int, float]]] = []
    count = 0
    while any(ops for queue in queues for ops in queue.values()):
        meeting: dict[Hashable, list[tuple[int, Op, float]]] = defaultdict(list)
        for rank, queue in enumerate(queues):
            for stream, ops in queue.items():
                if ops and all(name in ended[rank] for name in ops[0].after):
                    ready = max([free[rank][stream], *(ended[rank][name] for name in ops[0].after)])
                    meeting[meets(schedule, rank, ops[0])].append((rank, ops[0], ready))
        done = {
            key: party for key, party in meeting.items() if len(party) == partners(schedule, party[0][1], party[0][0])
        }
        assert done, "the test's schedule deadlocks"
        for party in done.values():
            begin = max(ready for _, _, ready in party)
            for rank, op, ready in party:
                end = begin + seconds(op) * (slow or {}).get(rank, 1.0)
                queues[rank][op.stream].pop(0)
                ended[rank][op.name] = free[rank][op.stream] = end
                number = numbers[schedule.program_of[rank]][op.name]
                rows[rank].append((number, 0, ready, begin, end))
                communications[rank][number] = NO_COMMUNICATION if isinstance(op, Compute) else count
            count += 1
            if len(party) > 1 and cluster is not None:
                members = [rank for rank, _, _ in party]
                ring = zip(members, [*members[1:], members[0]], strict=True)
                links = {link: TRANSFER_RATE for a, b in ring for link in cluster.route(f"gpu {a}", f"gpu {b}")}
                uses.append((begin, end, links))
    carried: dict[int, float] = defaultdict(float)
    for since, until, rates in uses:
        for link, rate in rates.items():
            carried[link] += rate * (until - since)
    devices = [f"gpu {rank}" for rank in ranks_of(schedule)]
    columns = [
        own._replace(communication=np.array([communications[rank][op] for op in own.op.tolist()]))
        for rank, own in enumerate(map(Columns.of, rows))
    ]
    return Timeline.unfolded(
        schedule, columns, cluster, devices=devices, link_bytes=carried, link_use=link_use(uses) if uses else None
    )


def link_use(uses: Iterable[tuple[float, float, Mapping[int, float]]]) -> LinkUse:
    """Of (begin, end, rate by link), a flow for each link of each of them."""
    rows = [(begin, end, rate, link) for begin, end, links in uses for link, rate in links.items()]
    begin, end, rate, link = (np.array(column) for column in zip(*rows, strict=True))
    numbers = np.arange(len(rows))
    flows = FlowLinks(np.arange(len(rows) + 1), link.astype(np.int64), np.ones(len(rows), np.int64))
    return LinkUse(RateIntervals(numbers, begin, end, rate), flows)


def ranks_of(schedule: Schedule) -> range:
    return range(schedule.mesh.world_size)


def seconds(op: Op) -> float:
    if isinstance(op, Compute):
        return sum(kernel.seconds or 0.0 for kernel in op.kernels)
    assert isinstance(op, Send | Recv | Collective | Copy)
    return op.nbytes / TRANSFER_RATE


def meets(schedule: Schedule, rank: int, op: Op) -> Hashable:
    if isinstance(op, Compute | Copy):
        return rank, op.name
    assert isinstance(op, Send | Recv | Collective)
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    assert place is not None
    if isinstance(op, Collective):
        return op.over, place[0], op.name
    pair = (place[1], op.peer) if isinstance(op, Send) else (op.peer, place[1])
    return op.over, place[0], pair, op.action


def partners(schedule: Schedule, op: Op, rank: int) -> int:
    if isinstance(op, Collective):
        place = schedule.mesh.axes[op.over].place(rank)
        assert place is not None
        return len(schedule.mesh.axes[op.over].groups[place[0]])
    return 2 if isinstance(op, Send | Recv) else 1


def crossbar(ranks: int, memory_bytes: float = 16e9) -> Cluster:
    """GPUs around one switch; links of two kinds, in and out."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node("switch 0", kind="nvswitch")
    accelerator = Accelerator(peak_flops=1e12, memory_bytes=memory_bytes)
    for rank in range(ranks):
        graph.add_node(f"gpu {rank}", kind="gpu", node=rank // 4, accelerator=accelerator)
        graph.add_edge(f"gpu {rank}", "switch 0", link=Link("uplink", 2e9, 0.0))
        graph.add_edge("switch 0", f"gpu {rank}", link=Link("downlink", 4e9, 0.0))
    return Cluster(graph)


def data_parallel(ranks: int, layers: int = 12, buckets: int = 4) -> Schedule:
    """Forward, backward, an all-reduce for each bucket beside the backward pass, the optimizer after all."""
    each = layers // buckets
    ops: list[Op] = [
        Copy(name="load", stream="copy", nbytes=2e6, to="gpu"),
    ]
    for layer in range(layers):
        ops.append(
            Compute(
                name=f"F0 l{layer}", action=Action("F", 0, 0), layer=f"l{layer}", kernels=(Kernel(2e9, seconds=0.003),),
                allocates={"activations": 1e8}, after=("load",) if layer == 0 else (),
            )
        )  # fmt: skip
    for layer in reversed(range(layers)):
        ops.append(
            Compute(
                name=f"B0 l{layer}", action=Action("B", 0, 0), layer=f"l{layer}", kernels=(Kernel(4e9, seconds=0.006),),
                frees={"activations": 1e8},
            )
        )  # fmt: skip
        if layer % each == 0:
            name = f"all_reduce b{layer // each}"
            ops.append(
                Collective(name=name, stream="dp", after=(f"B0 l{layer}",), kind="all_reduce", over="dp", nbytes=22e6)
            )
    after = tuple(op.name for op in ops if isinstance(op, Collective))
    ops.append(Compute(name="O", action=Action("O", 0), kernels=(measured(0.004),), after=after))
    resident = {"parameters": 4e8, "gradients": 4e8, "optimizer": 8e8, "host.buffers": 1e7}
    return Schedule(Mesh.regular({"dp": ranks}), (Program("all", tuple(ops), resident),), (0,) * ranks)


def pipeline(stages: int, micro_batches: int) -> Schedule:
    """GPipe: all forwards, then all backwards, with activations sent between neighbours."""
    programs = tuple(Program(f"stage {s}", tuple(_stage(s, stages, micro_batches))) for s in range(stages))
    return Schedule(Mesh.regular({"pp": stages}), programs, tuple(range(stages)))


def _stage(stage: int, stages: int, micro_batches: int) -> list[Op]:
    ops: list[Op] = []
    for phase, order in (("F", range(micro_batches)), ("B", range(micro_batches - 1, -1, -1))):
        step = 1 if phase == "F" else -1
        source, target = stage - step, stage + step
        for m in order:
            action, name = Action(phase, stage, m), f"{phase}{m}"
            if 0 <= source < stages:
                received = Action(phase, source, m)
                ops.append(
                    Recv(name=f"recv {name}", action=received, stream=f"pp {source}>{stage}", over="pp", peer=source,
                         nbytes=1e7)
                )  # fmt: skip
            ops.append(
                Compute(
                    name=name, action=action, kernels=(measured(0.1 if phase == "F" else 0.2),),
                    after=(f"recv {name}",) if 0 <= source < stages else (),
                    allocates={"activations": 1e9} if phase == "F" else {},
                    frees={"activations": 1e9} if phase == "B" else {},
                )
            )  # fmt: skip
            if 0 <= target < stages:
                ops.append(
                    Send(name=f"send {name}", action=action, stream=f"pp {stage}>{target}", after=(name,), over="pp",
                         peer=target, nbytes=1e7)
                )  # fmt: skip
    return ops


@pytest.fixture(scope="session")
def ddp() -> Callable[[int], Timeline]:
    """Data parallelism on so many ranks, the last of which is slow."""
    return lambda ranks: played(data_parallel(ranks), crossbar(ranks), {ranks - 1: 1.3})


@pytest.fixture(scope="session")
def gpipe() -> Callable[[int, int], Timeline]:
    """A pipeline of so many stages and micro-batches."""
    return lambda stages, micro_batches: played(pipeline(stages, micro_batches), crossbar(stages, 40e9))
