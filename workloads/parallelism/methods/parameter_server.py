"""The parameter server: hosts keep the parameters; GPUs pull them, compute, and push their gradients.

Several servers share the parameters. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI
2014. Its cost follows from all GPUs sharing the port of a server. By default it is synchronous, and a step pulls the
whole model, computes, and pushes all gradients. With *overlap* or *staleness* parts are exchanged one by one
(`workloads.parallelism.methods._push_pull`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from clustersim.simulator.hardware.kernel import BYTES, Operation, memory_bound
from clustersim.simulator.reading.quantities import BelongsTo, Count, Flag, Index, Size
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import Bucket, BucketCode, Coding, Compressed
from clustersim.workloads.data_parallel.gradients import weights_by_stage
from clustersim.workloads.data_parallel.sharded_states import of_shard
from clustersim.workloads.memory.compute import update_op
from clustersim.workloads.memory.optimizer import Optimizer, resident_states
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import ReducingMethod, TrainingStep
from clustersim.workloads.parallelism.methods._push_pull import PushPull, parts_of, whole_shares
from clustersim.workloads.pipelines._row_patterns import SteadyState

GRADIENT_SUM = Operation("sum of gradients", "elementwise")


OF_OVERLAP = BelongsTo("overlap", to="overlap: true; without it each server has one piece")


class ParameterServer(ReducingMethod):
    """Hosts keep the parameters, sharded over *servers* of them."""

    whole_model: ClassVar[bool] = True

    method: Literal["parameter_server"]
    """parameter_server: hosts keep the parameters."""
    servers: Count = 1
    """Hosts that share the parameters."""
    overlap: Flag = False
    """Gradients are pushed beside the backward pass, layer by layer, and weights pulled before a layer reads them."""
    partition: Annotated[Size | None, OF_OVERLAP] = None
    """Bytes of the pieces in which tensors are pushed and pulled, for overlap; by default whole tensors. BytePS has
    4 MB."""
    priority: Annotated[Flag, OF_OVERLAP] = False
    """Of the pieces that wait, that of the first layer goes first (BytePS, ByteScheduler), for overlap; by default the
    one that is ready first."""
    staleness: Index | Literal["async"] = 0
    """Steps that a GPU may be ahead of the slowest one; 0: none (synchronous); async: any number."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.compression is not None and self.in_parts:
            raise Fault("compression", "belongs to one push of all gradients: leave overlap and staleness away")
        return self

    @property
    def in_parts(self) -> bool:
        """True if parts are exchanged one by one."""
        return self.overlap or self.staleness != 0

    def period(self, steps: int) -> SteadyState | None:
        """A step before and a step after the measured ones; of GPUs that do not wait, enough to tell the mean."""
        if not self.in_parts:
            return None
        if self.staleness == "async":
            return SteadyState(1, max(steps, LEAST_STEPS), 1)
        # others end their last step up to so many steps before the slowest
        return SteadyState(1 + LEAD * self.staleness, steps, 1 + self.staleness)

    @property
    def hosts(self) -> int:
        """One for each server."""
        return self.servers

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Add the servers, and what the GPUs exchange with them."""
        if self.in_parts:
            return self._exchange(schedule, step).schedule(schedule)
        return parameter_server(
            schedule,
            step.model,
            servers=self.servers,
            optimizer=step.optimizer,
            gradient_dtype=step.gradient_dtype,
            code=self._code(step),
        )

    def _code(self, step: TrainingStep) -> BucketCode | None:
        """How a GPU encodes all its gradients; None without compression."""
        if self.compression is None:
            return None
        dtype = step.gradient_dtype or step.model.precision
        tensors = [tensor for layer in step.model.layers for tensor in layer.tensors]
        reduction = self.compressed(_pushed)
        return reduction.code(Bucket.of(tensors, dtype, "")) if isinstance(reduction, Compressed) else None

    def _exchange(self, schedule: Schedule, step: TrainingStep) -> PushPull:
        (workers,) = schedule.degrees(REPLICAS)
        model, dtype = step.model, step.gradient_dtype or step.model.precision
        layers = [own for stage in weights_by_stage(schedule.programs[0], model).values() for own in stage]
        most = self.partition / BYTES[dtype] if self.partition else None
        return PushPull(
            model,
            parts_of(layers, self.servers, most) if self.overlap else whole_shares(model, self.servers),
            servers=self.servers,
            workers=workers,
            batches=schedule.batches,
            micro_batches=step.micro_batches,
            staleness=None if self.staleness == "async" else self.staleness,
            optimizer=step.optimizer,
            dtype=dtype,
            priority=self.priority,
        )


LEAST_STEPS = 8
"""Steps of the fastest GPU over which a mean is taken where GPUs do not wait for one another."""

LEAD = 4
"""Steps that a GPU may need to be one step ahead of the slowest, before the measured ones: then one that is a third
slower than the others holds all of them back."""


def _pushed(bucket: Bucket) -> Iterator[Collective]:
    """The plain push of *bucket*."""
    yield _exchange("push", "reduce", 0, bucket.nbytes)


def parameter_server(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    servers: int = 1,
    optimizer: str | Optimizer = "sgd",
    gradient_dtype: str | None = None,
    code: BucketCode | None = None,
) -> Schedule:
    """Return *schedule*, of one stage, with replicas along ``dp`` and *servers* host ranks, numbered after the GPUs.

    *replicas*: make so many copies first; None: the mesh has the axis. Server i and all GPUs form the axis ``ps.i``,
    with the server at coordinate 0. A step broadcasts each server's shard, computes, reduces the gradients to the
    servers, and updates there. *code*: how a GPU encodes its gradients; the servers decode them.
    """
    schedule = schedule if replicas is None else schedule.replicate(REPLICAS, replicas)
    (program,) = schedule.programs
    (count,) = schedule.degrees(REPLICAS)
    dtype = gradient_dtype or model.precision
    parameters = float(model.trainable_parameters * BYTES[model.precision]) / servers
    gradients = float(model.trainable_parameters * BYTES[dtype]) / servers
    sent = code.sent / servers if code else gradients
    pulled = code.answer / servers if code and code.answer is not None else parameters
    pulls = [_exchange("pull", "broadcast", server, pulled) for server in range(servers)]
    body = [op for op in program.ops if not (op.action and op.action.phase == "O")]
    body[0] = replace(body[0], after=(*body[0].after, *(pull.name for pull in pulls)))
    held = {category: nbytes for category, nbytes in program.resident.items() if category != "optimizer"}
    if code:
        body = _coded(body, code, gradients * servers)
        held["buffers"] = held.get("buffers", 0.0) + code.kept
    pushes = [_exchange("push", "reduce", server, sent, after=(body[-1].name,)) for server in range(servers)]
    gpu = Program("GPU", (*pulls, *body, *pushes), held)
    hosts = list(_servers(model, servers, count, optimizer, dtype, sent, pulled))
    if code and code.answer is not None:  # the GPUs update, so that a server keeps nothing
        hosts = [replace(host, ops=host.ops[:-1], resident={}) for host in hosts]

    gpus = tuple(range(count))
    axes = {f"ps.{server}": Axis(((count + server, *gpus),)) for server in range(servers)}
    return replace(
        schedule,
        mesh=schedule.mesh.extended(servers, axes),
        programs=(gpu, *hosts),
        program_of=(0,) * count + tuple(range(1, servers + 1)),
    )


def _exchange(what: str, kind: str, server: int, nbytes: float, after: tuple[str, ...] = ()) -> Collective:
    axis = f"ps.{server}"
    name = f"{what} {server}"
    return Collective(name=name, kind=kind, over=axis, nbytes=nbytes, algorithm="direct", stream=axis, after=after)


def _coded(body: list[Op], code: BucketCode, gradients: float) -> list[Op]:
    """*body* between the kernels that decode what was pulled and those that encode its *gradients* (bytes)."""
    encoding = tuple(kernel for one in code.rounds for kernel in one.kernels)
    encode = Coding(name="encode", kernels=encoding, gradients=gradients, sent=code.sent, warm_up=code.warm_up)
    if not code.decode:
        return [*body, encode]
    decode = Coding(name="decode", kernels=code.decode, after=body[0].after, decodes=True)
    return [decode, *body, encode]


def _servers(
    model: Model,
    servers: int,
    replicas: int,
    optimizer: str | Optimizer,
    dtype: str,
    pushed: float,
    pulled: float,
) -> Iterator[Program]:
    """Yield the program of each of *servers*, which hold equal shares of the states of *model*.

    *pushed*, *pulled*: bytes of the messages of a GPU and a server.
    """
    count = model.trainable_parameters
    trained = [tensor for tensor in model.tensors_of({layer.name for layer in model.layers}) if tensor.trainable]
    states = resident_states(trained, optimizer, model.precision, dtype)
    kept = {f"host.{category}": nbytes / servers for category, nbytes in states.items()}
    update = update_op(model, Action("O", 0), trained, optimizer, dtype)
    update = replace(update, kernels=tuple(of_shard(kernel, count, count / servers) for kernel in update.kernels))
    gradients = float(count * BYTES[dtype]) / servers
    for server in range(servers):
        push, pull = _exchange("push", "reduce", server, pushed), _exchange("pull", "broadcast", server, pulled)
        # every arriving gradient is read and added to the sum
        adds = memory_bound(replicas * pushed + gradients, operation=GRADIENT_SUM)
        total = Compute(
            name="add gradients",
            kernels=() if model.optimizer_seconds is not None else (adds,),
            stream=push.stream,
            on="host",
        )
        # on the same stream, so that the next step's pull waits for the update
        ops = pull, push, total, replace(update, stream=push.stream, on="host")
        yield Program(f"server {server}", ops, kept, on="host")
