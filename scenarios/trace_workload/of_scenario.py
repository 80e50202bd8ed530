"""The replay that a scenario describes: its traces, its replicas, and the GPU of its cluster."""

from __future__ import annotations

from pathlib import Path

from clustersim.scenarios.specification.specification import Specification
from clustersim.scenarios.trace_workload.gpu_speed import GpuSpeed, gpu_of
from clustersim.scenarios.trace_workload.replay_schedule import TraceReplay
from clustersim.scenarios.trace_workload.replicas import RepeatedRanks
from clustersim.scenarios.trace_workload.traced_step import traced_step
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ClusterError, TraceError
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.validation import near
from clustersim.topologies.catalogue import GPUS


def replay_of(specification: Specification, cluster: Cluster, document: Document) -> TraceReplay:
    """Return the replay of the ``workload`` of *specification* on *cluster*.

    Raises `TraceError` for traces that cannot be replayed, and `ScenarioError` at the key to change.
    """
    workload, degree = specification.workload, specification.parallelism.dp
    assert workload is not None
    if workload.collectives == "measured" and degree != "auto":
        raise document.error(
            ("parallelism", "dp"), "other replicas change the collectives; take workload.collectives: simulated"
        )
    if workload.gpu not in ("auto", *names(GPUS)):
        known = names(GPUS)
        raise document.error(("workload", "gpu"), f'unknown GPU "{workload.gpu}"', near(workload.gpu, known))
    step = traced_step([Path(one) for one in workload.trace])
    replicas = RepeatedRanks(step, degree if isinstance(degree, int) else 0, workload.dp_group)
    try:
        replicas.check()
    except TraceError as error:
        if isinstance(degree, int):
            raise document.error(("parallelism", "dp"), str(error)) from None
        raise
    source = gpu_of(step.device) if workload.gpu == "auto" else workload.gpu
    if not cluster.gpus:
        raise ClusterError("the cluster has no GPU")
    target = cluster.accelerator(cluster.gpus[0])
    return TraceReplay(step, replicas, GpuSpeed.between(source, target), workload.collectives == "measured")
