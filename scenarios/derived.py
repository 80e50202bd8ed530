"""What follows from a scenario and its cluster: degrees, batches, which GPU each rank has; and what must hold there."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios.specification import Specification
from scenarios.training import indivisible
from simulator.cluster import Cluster
from simulator.document import Document


@dataclass(frozen=True)
class Derived:
    """Numbers of *gpus* there are, of *replicas* of *tp* x *pp* ranks, of *micro_batches* and of samples in each.

    *devices* names the GPU or host of each rank, *idle* the GPUs that have none.
    """

    gpus: int
    tp: int
    pp: int
    replicas: int
    micro_batch_size: int
    micro_batches: int
    devices: tuple[str, ...]
    idle: tuple[str, ...]


def derive(specification: Specification, cluster: Cluster, document: Document) -> Derived:
    """The facts that follow. Raises `ScenarioError`, at the key to change, where they contradict the scenario."""
    parallelism = specification.parallelism
    tp, pp = (1, 1) if specification.training is None else (parallelism.tp, parallelism.pp)
    replicas = _replicas(specification, cluster, document)
    micro_batch_size = micro_batches = 0
    if specification.training is not None:
        micro_batch_size, micro_batches = _batches(specification, replicas, document)
    gpus = _gpus(specification, cluster, tp * pp * replicas, document)
    hosts = _hosts(specification, cluster, document)
    ranks = len(gpus) + len(hosts)
    for place, straggler in enumerate(specification.simulation.stragglers):
        if straggler.rank >= ranks:
            path = ("simulation", "stragglers", place, "rank")
            raise document.error(path, f"there is no rank {straggler.rank}; ranks go from 0 to {ranks - 1}")
    used = set(gpus)
    idle = tuple(gpu for gpu in cluster.gpus if gpu not in used)
    return Derived(len(cluster.gpus), tp, pp, replicas, micro_batch_size, micro_batches, gpus + hosts, idle)


def _replicas(specification: Specification, cluster: Cluster, document: Document) -> int:
    """How many replicas of the model there are; of a collective, ranks."""
    there, benchmark = len(cluster.gpus), specification.collective
    if there == 0:
        raise document.error(("cluster",), "has no GPU")
    if benchmark is not None:
        ranks = benchmark.ranks or there
        if ranks > there:
            raise document.error(("collective", "ranks"), f"{ranks} ranks need {ranks} GPUs, but there are {there}")
        if benchmark.root >= ranks:
            raise document.error(
                ("collective", "root"), f"there is no rank {benchmark.root}; ranks go from 0 to {ranks - 1}"
            )
        return ranks
    parallelism = specification.parallelism
    each = parallelism.tp * parallelism.pp
    degree = max(1, there // each) if parallelism.dp == "auto" else parallelism.dp
    if each * degree > there:
        key = "dp" if parallelism.dp != "auto" else "pp" if parallelism.pp > 1 else "tp"
        message = f"tp {parallelism.tp} x pp {parallelism.pp} x dp {degree} needs {each * degree} GPUs"
        raise document.error(("parallelism", key), f"{message}, but there are {there}")
    return degree


def _batches(specification: Specification, replicas: int, document: Document) -> tuple[int, int]:
    """(micro-batch size, micro-batches of a replica)."""
    training = specification.training
    assert training is not None
    batch, micro = training.global_batch_size, training.micro_batch_size
    if batch % (replicas * (micro or 1)):
        name = f"dp {replicas}" if micro is None else f"micro_batch_size {micro} x dp {replicas} = {micro * replicas}"
        message = indivisible(batch, replicas * (micro or 1), name)
        raise document.error(("training", "global_batch_size"), message)
    micro = micro or batch // replicas
    return micro, batch // (replicas * micro)


def _gpus(specification: Specification, cluster: Cluster, ranks: int, document: Document) -> tuple[str, ...]:
    """The GPU of each rank: packed node by node, dealt over the nodes in turn, or as listed."""
    placement, path = specification.parallelism.placement, ("parallelism", "placement")
    if placement == "packed":
        return cluster.gpus[:ranks]
    if placement == "round_robin":
        return _dealt(cluster)[:ranks]
    if len(placement) != ranks:
        raise document.error(path, f"lists {len(placement)} GPUs for {ranks} ranks; give one for each")
    for gpu in placement:
        if int(gpu) >= len(cluster.gpus):
            raise document.error(path, f"there is no GPU {gpu}; GPUs go from 0 to {len(cluster.gpus) - 1}")
    return tuple(cluster.gpus[int(gpu)] for gpu in placement)


def _dealt(cluster: Cluster) -> tuple[str, ...]:
    nodes: dict[int | str, list[str]] = {}
    for gpu in cluster.gpus:
        nodes.setdefault(cluster.node_of(gpu), []).append(gpu)
    deepest = max(map(len, nodes.values()))
    return tuple(gpus[turn] for turn in range(deepest) for gpus in nodes.values() if turn < len(gpus))


def _hosts(specification: Specification, cluster: Cluster, document: Document) -> tuple[str, ...]:
    """The host of each parameter server, spread evenly over the cluster."""
    data = specification.parallelism.data
    if specification.collective is not None or data.method != "parameter_server":
        return ()
    there = len(cluster.hosts)
    if data.servers > there:
        message = f"{data.servers} servers need as many hosts, but the cluster has {there}"
        raise document.error(("parallelism", "data", "servers"), message)
    return tuple(cluster.hosts[server * there // data.servers] for server in range(data.servers))
