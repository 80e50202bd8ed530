"""What follows from a scenario and its cluster: layouts, batches, the GPU of each rank, the clocks of equal GPUs, and
reserved memory; and checks of these.

Clocks of equal GPUs: a synchronous step waits for the slowest of all, a pipeline for its longest stage.

GPUs of one type run products at different speeds (`Accelerator.slowest_of`). If all of them compute equally long, the
slowest of all decides. If one stage of a pipeline computes longer than the others, as the last one does with its
head, then the slowest of the few GPUs of that stage does, unless one of the others is slower by more than what the
longest stage has more to compute.

Reserved memory: bytes that a process holds on its GPU beyond the tensors of its schedule.

These are CUDA's context with the loaded kernels (given by the software stack) and the buffers of the communication
library (given by the transport); their sources are stated there. Fragmentation is what PyTorch's caching allocator
reserves for activations beyond their bytes: free parts of blocks that it has split. States are allocated once and leave
no gaps. Its share of the reserved memory is an average (`Software`); it depends on the history of a run.

``torch.cuda.max_memory_allocated`` is the peak of the tensors, ``max_memory_reserved`` that and fragmentation, and
nvidia-smi shows all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from clustersim.scenarios.specification.specification import Specification
from clustersim.scenarios.specification.training import indivisible
from clustersim.simulator.engine.pricing import Pricing, Variation
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import firsts
from clustersim.simulator.hardware.slowest import waited_for
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.mesh import Layout
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.composition import degrees, layouts
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._tensor_grid import TENSOR


@dataclass(frozen=True)
class Derived:
    """The number of *gpus* of the cluster, the *degrees* of the parallelisms, and the *layouts* of the ranks.

    There are several layouts if pipeline ranks have unequal numbers of replicas, *by_stage*; the degree of replicas is
    1 then. Each replica has *micro_batches* of *micro_batch_size* samples. *devices*: the GPU or host of each rank.
    *idle*: the GPUs without a rank. *beside*: what parallelisms without ranks of their own say of themselves.
    *accelerator*: that of the first rank.
    """

    gpus: int
    degrees: Mapping[str, int]
    layouts: tuple[Layout, ...]
    micro_batch_size: int
    micro_batches: int
    devices: Sequence[str]
    idle: Sequence[str]
    by_stage: tuple[int, ...] | None = None
    beside: tuple[str, ...] = ()
    accelerator: Accelerator | None = None

    @property
    def ranks(self) -> int:
        """The number of ranks on GPUs."""
        return sum(layout.size for layout in self.layouts)

    @property
    def replicas(self) -> int:
        """The number of replicas of the whole model."""
        return self.degree(REPLICAS)

    def degree(self, axis: str) -> int:
        """Return the degree of *axis*; 1 if there is no such axis."""
        return self.degrees.get(axis, 1)

    @property
    def described(self) -> str:
        """The degrees as text: ``tp 8 x pp 8 x dp 16``."""
        shown: dict[str, object] = dict(self.degrees)
        if self.by_stage:
            shown[REPLICAS] = "-".join(map(str, self.by_stage))
        return ", ".join([" x ".join(f"{axis} {degree}" for axis, degree in shown.items()), *self.beside])


def derive(specification: Specification, cluster: Cluster, document: Document, traced_ranks: int = 0) -> Derived:
    """Derive degrees, batches and devices. Raises `ScenarioError` at the key to change if that is impossible.

    *traced_ranks*: the ranks of a replayed trace.
    """
    gpu_count = len(cluster.gpus)
    if gpu_count == 0:
        raise document.error(("cluster",), "has no GPU")
    micro_batch_size = micro_batches = 0
    degree_of: Mapping[str, int] = {}
    by_stage: tuple[int, ...] | None = None
    if traced_ranks:
        if traced_ranks > gpu_count:
            key = ("parallelism", REPLICAS) if specification.parallelism.dp != "auto" else ("cluster",)
            message = f"the {traced_ranks} ranks of the trace need as many GPUs, but there are {gpu_count}"
            raise document.error(key, message, at_key=key == ("cluster",))
        rank_layouts: tuple[Layout, ...] = (Layout({"all": traced_ranks}),)
    elif specification.training is None:
        rank_layouts = (Layout({"all": _collective_ranks(specification, gpu_count, document)}),)
    else:
        by_stage = specification.parallelism.replicas_by_stage
        degree_of, rank_layouts = _layouts(specification, gpu_count, document)
        _check_auto_replicas(specification, gpu_count, degree_of, document)
        micro_batch_size, micro_batches = _batches(specification, degree_of[REPLICAS], by_stage, document)
    gpus = _gpus(specification, cluster, sum(layout.size for layout in rank_layouts), document)
    hosts = _hosts(specification, cluster, document)
    ranks = len(gpus) + len(hosts)
    for place, straggler in enumerate(specification.simulation.slow_ranks):
        if straggler.rank >= ranks:
            long = ("variation",) if specification.simulation.variation else ()
            path = ("simulation", *long, "stragglers", place, "rank")
            raise document.error(path, f"there is no rank {straggler.rank}; ranks go from 0 to {ranks - 1}")
    packed = gpus == cluster.gpus[: len(gpus)]
    used = set() if packed else set(gpus)
    idle = cluster.gpus[len(gpus) :] if packed else tuple(gpu for gpu in cluster.gpus if gpu not in used)
    beside = tuple(filter(None, (part.described for part in specification.parallelism.parts.values())))
    sizes, first = (micro_batch_size, micro_batches), cluster.accelerator(gpus[0])
    devices = (*gpus, *hosts) if hosts else gpus
    return Derived(gpu_count, degree_of, rank_layouts, *sizes, devices, idle, by_stage, beside, first)


def _collective_ranks(specification: Specification, gpu_count: int, document: Document) -> int:
    """Return the number of ranks of a collective."""
    benchmark = specification.collective
    assert benchmark is not None
    ranks = benchmark.ranks or gpu_count
    if ranks > gpu_count:
        raise document.error(("collective", "ranks"), f"{ranks} ranks need {ranks} GPUs, but there are {gpu_count}")
    if benchmark.root >= ranks:
        raise document.error(
            ("collective", "root"), f"there is no rank {benchmark.root}; ranks go from 0 to {ranks - 1}"
        )
    return ranks


def _layouts(
    specification: Specification, gpu_count: int, document: Document
) -> tuple[Mapping[str, int], tuple[Layout, ...]]:
    """Return the degree of each parallelism, and the layouts of the ranks on *gpu_count* GPUs."""
    parallelism = specification.parallelism
    parts = parallelism.parts
    try:
        rank_layouts = layouts(list(parts.values()), gpu_count, parallelism.numbering)
    except ScheduleError as error:
        raise document.error(("parallelism", "dp"), str(error)) from None
    degree_of = degrees(list(parts.values()), gpu_count)
    needed = sum(layout.size for layout in rank_layouts)
    if needed > gpu_count:
        given = [key for key, part in parts.items() if degree_of.get(part.axis, 1) > 1 and part.axis != REPLICAS]
        key = REPLICAS if parallelism.dp != "auto" else given[-1]
        shown = " x ".join(f"{axis} {degree}" for axis, degree in degree_of.items())
        raise document.error(("parallelism", key), f"{shown} needs {needed} GPUs, but there are {gpu_count}")
    return degree_of, rank_layouts


def check_stages(specification: Specification, derived: Derived) -> None:
    """Raise `ScheduleError` unless the ranks of a pipeline stage suit all parallelisms, as a schedule does later."""
    for layout in derived.layouts:
        stage = layout.size // layout.degrees.get(PIPELINE, 1)
        for part in specification.parallelism.parts.values():
            part.check_stage(stage, layout.degrees.get(TENSOR, 1))


def _check_auto_replicas(
    specification: Specification, gpu_count: int, degree_of: Mapping[str, int], document: Document
) -> None:
    """Raise `ScenarioError` at a degree that leaves GPUs over and a number of replicas that cannot share the batch."""
    parallelism, training = specification.parallelism, specification.training
    assert training is not None
    others = {key: degree_of.get(part.axis, 1) for key, part in parallelism.parts.items() if part.axis != REPLICAS}
    given = {key: degree for key, degree in others.items() if degree > 1}
    inner, replicas = prod(given.values()), degree_of[REPLICAS]
    if parallelism.dp != "auto" or gpu_count % inner == 0 or training.global_batch_size % replicas == 0:
        return
    from clustersim.workloads.architectures.shape import nearest_divisors

    shown = " x ".join(f"{key} {degree}" for key, degree in given.items())
    good = " or ".join(map(str, nearest_divisors(gpu_count, inner)))
    what = next(iter(given)) if len(given) == 1 else " x ".join(given)
    raise document.error(
        ("parallelism", next((key for key, degree in given.items() if gpu_count % degree), list(given)[-1])),
        f"{shown} does not divide the {gpu_count} GPUs: dp would be {replicas}, of which global_batch_size "
        f"{training.global_batch_size} is no multiple; try {what} = {good}, or give dp",
    )


def _batches(
    specification: Specification, replicas: int, by_stage: tuple[int, ...] | None, document: Document
) -> tuple[int, int]:
    """Return (micro-batch size, micro-batches of a replica)."""
    training = specification.training
    assert training is not None
    batch, micro = training.global_batch_size, training.micro_batch_size
    for degree in by_stage or (replicas,):
        if batch % (degree * (micro or 1)):
            name = f"dp {degree}" if micro is None else f"micro_batch_size {micro} x dp {degree} = {micro * degree}"
            message = indivisible(batch, degree * (micro or 1), name)
            raise document.error(("training", "global_batch_size"), message)
    micro = micro or batch // max(by_stage or (replicas,))
    for key, part in specification.parallelism.parts.items():
        if micro % part.sample_shares:
            raise document.error(
                ("training", "micro_batch_size"),
                f"a micro-batch of {micro} cannot be divided by the {part.sample_shares} ranks of {key} that share its "
                f"samples; give a multiple of {part.sample_shares}",
                at_key="micro_batch_size" not in document.data["training"],
            )
    return micro, batch // (replicas * micro)


def _gpus(specification: Specification, cluster: Cluster, ranks: int, document: Document) -> Sequence[str]:
    """Return the GPU of each rank: node by node, round robin over the nodes, or as listed."""
    placement, path = specification.parallelism.placement, ("parallelism", "placement")
    if placement == "packed":
        return cluster.gpus[:ranks]
    if placement == "round_robin":
        return _round_robin(cluster)[:ranks]
    if len(placement) != ranks:
        raise document.error(path, f"lists {len(placement)} GPUs for {ranks} ranks; give one for each")
    for gpu in placement:
        if int(gpu) >= len(cluster.gpus):
            raise document.error(path, f"there is no GPU {gpu}; GPUs go from 0 to {len(cluster.gpus) - 1}")
    return tuple(cluster.gpus[int(gpu)] for gpu in placement)


def _round_robin(cluster: Cluster) -> tuple[str, ...]:
    nodes: dict[int | str, list[str]] = {}
    for gpu in cluster.gpus:
        nodes.setdefault(cluster.node_of(gpu), []).append(gpu)
    deepest = max(map(len, nodes.values()))
    return tuple(gpus[turn] for turn in range(deepest) for gpus in nodes.values() if turn < len(gpus))


def _hosts(specification: Specification, cluster: Cluster, document: Document) -> Sequence[str]:
    """Return the host of each parameter server; they are spread evenly over the cluster."""
    needed, host_count = specification.parallelism.data.hosts, len(cluster.hosts)
    if specification.collective is not None or not needed:
        return ()
    if needed > host_count:
        message = f"{needed} servers need as many hosts, but the cluster has {host_count}"
        raise document.error(("parallelism", "data", "servers"), message)
    return tuple(cluster.hosts[server * host_count // needed] for server in range(needed))


def at_slowest_clock(cluster: Cluster, devices: Sequence[str]) -> Cluster:
    """Return *cluster* with each type of GPU among *devices* as fast as the slowest of their number.

    In a synchronous step all GPUs wait for the slowest.
    """
    gpus = cluster.count(devices)
    return cluster.with_accelerators(
        {accelerator: accelerator.slowest_of(count) for accelerator, count in gpus.items()}
    )


def at_clock_of_longest_stage(
    schedule: Schedule, cluster: Cluster, devices: Sequence[str], software: Software | None
) -> Cluster:
    """Return *cluster*, which is `at_slowest_clock` for *devices*, with GPUs as slow as those that a step waits for.

    Only ranks that compute differently make a difference. Launching by *software* counts as computing.
    """
    slowest = cluster.count(devices)
    if len(schedule.programs) == 1 or not any(accelerator.spread for accelerator in slowest):
        return cluster
    work = _work(schedule, cluster, devices, software)
    return cluster.with_accelerators(
        {one: one.slowest_of(waited_for(work[one], one.spread), now=slowest[one]) for one in work if one.spread}
    )


def _work(
    schedule: Schedule, cluster: Cluster, devices: Sequence[str], software: Software | None
) -> Mapping[Accelerator, Mapping[float, int]]:
    """By accelerator: how many ranks compute so many seconds in a step."""
    pricing = Pricing(schedule, cluster, devices, software, Variation())
    accelerators, places = cluster.accelerators(devices)
    alike = places * len(schedule.programs) + schedule.program_numbers
    count = np.bincount(alike)
    used = np.flatnonzero(count)
    found: dict[Accelerator, dict[float, int]] = {}
    for rank, times in zip(firsts(alike)[used].tolist(), count[used].tolist(), strict=True):
        seconds = float(pricing.durations(rank)[0].sum())
        counts = found.setdefault(accelerators[places[rank]], {})
        counts[seconds] = counts.get(seconds, 0) + times
    return found


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
        "fragmentation": fragmentation(activations, software),
    }


def fragmentation(activations: float, software: Software) -> float:
    """Return the bytes of the allocator's gaps between so many bytes of *activations*."""
    return activations * software.fragmentation / (1.0 - software.fragmentation)
