"""Offloading of a scenario: whether its cluster and its parallelism allow it, and the passes that apply it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.specification.memory_saving import Offload
from clustersim.scenarios.specification.specification import Specification
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.parallelism._parallelism import DataMethod, TrainingStep

if TYPE_CHECKING:
    from clustersim.workloads.data_parallel.host_optimizer import Places

SECTION = ("training", "offload")

STREAMED = (
    "its data parallelism must shard the parameters: take data: {method: zero, stage: 3} or {method: fsdp}; "
    "or ddp, whose replicas may have all states on the host (KARMA)"
)


def check_offload(specification: Specification, cluster: Cluster, derived: Derived, document: Document) -> None:
    """Check the section ``training.offload`` against the cluster and the method of data parallelism.

    Raises `ScenarioError` at the key that has to change.
    """
    offload = specification.training.offload if specification.training else None
    if offload is None:
        return
    of_method = _faults_of_method(specification, offload, derived.replicas)
    for key, message in (*of_method, *_faults_of_cluster(offload, cluster, derived.devices)):
        raise document.error((*SECTION, key), message)


def _faults_of_method(specification: Specification, offload: Offload, replicas: int) -> Iterator[tuple[str, str]]:
    """Yield (key, message) of what no system combines with the method of data parallelism."""
    from clustersim.workloads.parallelism.zero import Zero

    data = specification.parallelism.data
    if not offload.states:
        return
    if data.period(1) is not None:
        yield "optimizer", f"{data.method} is not modelled with states off the GPU; take ddp, zero or fsdp"
    if data.hosts or data.whole_model:
        yield "optimizer", f"{data.method} updates the parameters in a way of its own; take ddp, zero or fsdp"
    if offload.parameters != "gpu" and "parameters" not in data.sharded and not _out_of_core(offload, data):
        yield "parameters", f"is {offload.parameters}, so {STREAMED}"
    if offload.parameters != "gpu" and isinstance(data, Zero) and data.groups is not None:
        sizes = data.groups.sizes(replicas)
        if sizes.parameters != sizes.optimizer:
            message = f"is {offload.parameters}, but {data.label} share parameters and optimizer states differently"
            yield "parameters", f"{message}; take equal groups, or parameters: gpu"
    if offload.optimizer == "nvme" and "parameters" not in data.sharded:
        yield "optimizer", f"is nvme, as in ZeRO-Infinity, so {STREAMED}"
    whole = "gradients" not in data.sharded and replicas > 1
    if offload.gradients == "host" and whole and not _out_of_core(offload, data):
        message = f"is host, but {data.label} keeps whole gradients on each of {replicas} replicas"
        yield "gradients", f"{message}; take data: {{method: zero, stage: 2}}, or gradients: gpu"
    if offload.delayed_update and data.method not in ("zero", "ddp"):
        yield "delayed_update", f"belongs to ZeRO-Offload; {data.method} has none: take data: {{method: zero}}"


def _out_of_core(offload: Offload, data: DataMethod) -> bool:
    """True if each replica keeps all states on its host and none is sharded (KARMA, arXiv:2008.11421, section III)."""
    places = {offload.parameters, offload.gradients, offload.optimizer}
    return data.method == "ddp" and places == {"host"} and offload.optimizer_fraction == 1.0


def _faults_of_cluster(offload: Offload, cluster: Cluster, devices: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (key, message) of places that the nodes of *devices* lack."""
    used = [key for key in ("activations", "optimizer", "gradients", "parameters") if _leaves(offload, key)]
    if used and not cluster.hosts:
        instead = "none" if used[0] == "activations" else "gpu"
        yield used[0], f"{cluster.name} has no host to offload to; give it hosts, or take {instead}"
        return
    servers = {cluster.node_of(device): device for device in devices}
    for key in offload.on_drives:
        for device in servers.values():
            try:
                cluster.drive_of(device)
            except ClusterError as error:
                yield key, str(error)


def _leaves(offload: Offload, key: str) -> bool:
    return getattr(offload, key) not in ("gpu", "none")


def offloaded(schedule: Schedule, specification: Specification, step: TrainingStep) -> Schedule:
    """Return *schedule*, complete otherwise, with what ``training.offload`` moves off the GPUs."""
    training = specification.training
    assert training is not None
    offload = training.offload
    if offload is None or not offload.states:
        return schedule
    from clustersim.workloads.data_parallel.offloaded_states import offloaded_states

    places = places_of(offload, specification.parallelism.data, step.software)
    return offloaded_states(
        schedule, step.model, places, optimizer=training.update_rule, gradient_dtype=step.gradient_dtype
    )


def places_of(offload: Offload, data: DataMethod, software: Software) -> Places:
    """Return where *offload* puts the states.

    Under FSDP they cross to the host in fp32, and torch updates them. Megatron's distributed optimizer, which shards
    optimizer states alone, keeps its master weights.
    """
    from clustersim.workloads.data_parallel.host_optimizer import Places

    torch = data.method == "fsdp"
    megatron = software.unfused_update and not software.flat_update and set(data.sharded) == {"optimizer"}
    fused = not torch if offload.cpu_optimizer is None else offload.cpu_optimizer == "fused"
    return Places(
        offload.optimizer,
        offload.gradients,
        offload.parameters,
        offload.optimizer_fraction,
        offload.delayed_update,
        fused,
        data.overlaps if offload.overlap is None else offload.overlap,
        torch,
        megatron,
    )
