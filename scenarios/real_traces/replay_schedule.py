"""The replay of a trace that a scenario describes: its work as measured computations, also on another GPU, and its
communications as ops of the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from pathlib import Path

from clustersim.scenarios.real_traces.kernels_and_communications import ATTENTION, PRODUCT
from clustersim.scenarios.real_traces.pieces_of_work import HOST
from clustersim.scenarios.real_traces.traced_step import traced_step
from clustersim.scenarios.real_traces.work import RankWork, RepeatedRanks, TracedExchange, TracedStep, TracedWork
from clustersim.scenarios.specification.specification import Specification
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import BYTES, matmul, measured
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ClusterError, TraceError
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.validation import near
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import COLLECTIVES, Collective, Compute, Delay, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.topologies.catalogue import GPUS, device


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


LAUNCHES = "launches"
"""The stream of the host."""

_ACTIONS = {"forward": Action("F", 0, None), "backward": Action("B", 0, None), "optimizer": Action("O", 0, None)}


@dataclass(frozen=True)
class GpuSpeed:
    """Kernels were measured on the GPU *source* and run on *target*; None: it is not known on which they ran."""

    source: Accelerator | None
    target: Accelerator

    @classmethod
    def between(cls, source: str, target: Accelerator) -> GpuSpeed:
        """Return the speed of *target* relative to the GPU *source* of the catalogue; empty: not known."""
        return cls(device(GPUS, source).accelerator() if source else None, target)

    @property
    def changes(self) -> bool:
        """True if the GPUs differ. The GPU ``unit`` has no rates: on it all kernels keep their durations."""
        return self.source is not None and self.target.name not in (self.source.name, "unit")

    def seconds(self, work: TracedWork) -> float:
        """Return the seconds of *work* on the target.

        Products are scaled by their price on both GPUs, if the trace has their shape, else by the rate of products in
        their precision (default bf16); attention by that rate too; other kernels by the bandwidth of the memory. Copies
        between GPU and host, and work of the host, keep their durations.
        """
        if not self.changes or not work.kernel_class:
            return work.seconds
        assert self.source is not None
        if work.kernel_class == PRODUCT and work.shape is not None and work.precision in BYTES:
            batch, m, n, k = work.shape
            kernel = matmul(m, n, k, batch=batch, precision=work.precision)
            try:
                return work.seconds * self.target.kernel_seconds(kernel) / self.source.kernel_seconds(kernel)
            except ClusterError:
                return work.seconds * self._rate(self.source) / self._rate(self.target)
        if work.kernel_class in (PRODUCT, ATTENTION):
            precision = work.precision or "bf16"
            return work.seconds * self._rate(self.source, precision) / self._rate(self.target, precision)
        return work.seconds * _bandwidth(self.source) / _bandwidth(self.target)

    def _rate(self, gpu: Accelerator, precision: str = "bf16") -> float:
        """Return the FLOP/s of products of *gpu* in *precision*; in fp16 where there is no bf16."""
        for one in (precision, "bf16", "fp16", "fp32"):
            try:
                return gpu.peak(one) * gpu.matmul_efficiency
            except ClusterError:
                continue
        return gpu.matmul_efficiency


@dataclass(frozen=True)
class TraceReplay:
    """The replay of *step* with *replicas*; kernels take the time of *speed*.

    *as_measured*: a communication waits for all of its ranks, and then takes what it took in the trace.
    """

    step: TracedStep
    replicas: RepeatedRanks
    speed: GpuSpeed
    as_measured: bool = False

    @cached_property
    def schedule(self) -> Schedule:
        """The programs of the traced ranks, and which one each rank runs. Raises `TraceError`."""
        mesh = self.replicas.mesh()
        template = self.replicas.template()
        used = list(dict.fromkeys(template))
        programs = tuple(self._program(self.step.by_rank[rank], mesh) for rank in used)
        return Schedule(mesh, programs, tuple(used.index(rank) for rank in template))

    def _program(self, work: RankWork, mesh: Mesh) -> Program:
        return Program(f"rank {work.rank}", tuple(_ReplayOps(self, work, mesh).all()))


@dataclass
class _ReplayOps:
    """The ops of one rank."""

    replay: TraceReplay
    work: RankWork
    mesh: Mesh
    names: dict[int, str] = field(default_factory=dict)
    """By number of the work, the op that ends it."""
    ends: dict[str, str] = field(default_factory=dict)
    """By stream, its last op."""
    launched: int = 0

    @cached_property
    def main(self) -> str:
        """The stream with the most computation."""
        seconds: dict[str, float] = {}
        for work in self.work.works:
            if work.exchange is None:
                seconds[work.stream] = seconds.get(work.stream, 0.0) + work.seconds
        return max(seconds, key=lambda stream: seconds[stream], default="")

    def all(self) -> Iterator[Op]:
        for number, work in enumerate(self.work.works):
            yield from self._launches_until(work.launched)
            yield from self._of(number, work)
        if self.work.tail:
            yield Delay(name="end", stream=LAUNCHES, after=tuple(self.ends.values()), seconds=self.work.tail)

    def _launches_until(self, number: int | None) -> Iterator[Op]:
        for place in range(self.launched, -1 if number is None else number + 1):
            launch = self.work.launches[place]
            after = () if launch.awaited is None else (self.names[launch.awaited],)
            yield Delay(name=f"launch {place}", stream=LAUNCHES, after=after, seconds=launch.delay)
            self.launched = place + 1

    def _of(self, number: int, work: TracedWork) -> Iterator[Op]:
        name, seconds = f"{number} {work.name}", self.replay.speed.seconds(work)
        after = [self.names[one] for one in work.after]
        if work.launched is not None:
            after.append(f"launch {work.launched}")
        if work.delay:
            yield Delay(name=f"{number} delay", stream=work.stream, after=tuple(after), seconds=work.delay)
            after = []
        waits = tuple(dict.fromkeys(after))
        if work.exchange is not None:
            yield from self._communication(name, work, work.exchange, waits)
        else:
            yield self._computation(name, work, seconds, waits)
        as_measured = work.exchange is not None and self.replay.as_measured
        self.names[number] = self.ends[work.stream] = f"{name}, as measured" if as_measured else name

    def _communication(
        self, name: str, work: TracedWork, exchange: TracedExchange, after: tuple[str, ...]
    ) -> Iterator[Op]:
        as_measured = self.replay.as_measured
        nbytes = 0.0 if as_measured or exchange.kind == "barrier" else exchange.nbytes
        source = self.replay.step.source
        if nbytes is None:
            raise TraceError(
                f"{source}: rank {self.work.rank}: {work.name} does not say its size; record with record_shapes=True, "
                "or take its measured time: workload.collectives: measured"
            )
        kind = "all_reduce" if exchange.kind == "barrier" else exchange.kind
        if not exchange.is_message and kind not in COLLECTIVES:
            raise TraceError(f"{source}: rank {self.work.rank}: {work.name} is no collective that is simulated")
        axis = self._axis(exchange)
        if axis is None:
            yield self._computation(name, work, 0.0 if as_measured else work.seconds, after)
        elif exchange.is_message:
            yield self._message(name, work, exchange, axis, nbytes, after)
        else:
            yield Collective(name=name, stream=work.stream, after=after, kind=kind, over=axis, nbytes=nbytes)
        if as_measured:
            yield Delay(name=f"{name}, as measured", stream=work.stream, seconds=work.seconds)

    def _axis(self, exchange: TracedExchange) -> str | None:
        """Return the axis of *exchange*; None if it has one rank only."""
        for name, groups in self.replay.replicas.families.items():
            if exchange.group in groups and name.startswith("message") == exchange.is_message:
                return name
        return None

    def _message(
        self, name: str, work: TracedWork, exchange: TracedExchange, axis: str, nbytes: float, after: tuple[str, ...]
    ) -> Op:
        peer = exchange.target if exchange.kind == "send" else exchange.source
        kind = Send if exchange.kind == "send" else Recv
        coordinate = exchange.group.index(peer)
        return kind(name=name, stream=work.stream, after=after, over=axis, peer=coordinate, nbytes=nbytes)

    def _computation(self, name: str, work: TracedWork, seconds: float, after: tuple[str, ...]) -> Op:
        """Return a computation; a timer for what ran beside the main stream, since both took their time so."""
        if work.part == HOST or work.stream != self.main:
            return Delay(name=name, stream=work.stream, after=after, seconds=seconds)
        kernels = (measured(seconds),)
        return Compute(name=name, stream=work.stream, after=after, kernels=kernels, action=_ACTIONS.get(work.part))


def gpu_of(name: str) -> str:
    """Return the GPU of the catalogue that a trace calls *name*; empty if there is none.

    >>> gpu_of("NVIDIA H100 80GB HBM3"), gpu_of("NVIDIA A100-SXM4-80GB"), gpu_of("Tesla V100-SXM2-16GB"), gpu_of("GPU")
    ('h100', 'a100_80gb', 'v100_16gb', '')
    """
    words = name.lower().replace("-", " ").replace("_", " ").split()
    parts = {one: one.split("_") for one in names(GPUS)}
    fitting = [one for one, several in parts.items() if all(word in words for word in several)]
    return max(fitting, key=lambda one: len(parts[one]), default="")


def _bandwidth(gpu: Accelerator) -> float:
    return gpu.memory_bandwidth * gpu.memory_efficiency
