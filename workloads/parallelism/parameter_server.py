"""The parameter server: hosts keep the parameters; GPUs pull them, compute, and push their gradients.

Synchronous; several servers shard the parameters evenly. Li et al., "Scaling Distributed Machine Learning with the
Parameter Server", OSDI 2014. Its cost follows from all GPUs sharing the port of a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from simulator.document import Count
from simulator.kernel import BYTES, Kernel, memory_bound
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from simulator.schedule.mesh import Axis
from simulator.schedule.order import Action
from workloads.compute import update_op
from workloads.gradients.bucket import Bucket
from workloads.gradients.compressed import Code, Coding, Compressed
from workloads.memory.optimizer import state_bytes
from workloads.model import Model
from workloads.operators.parameter import REPLICAS
from workloads.parallelism import ReducingMethod, TrainingStep


class ParameterServer(ReducingMethod):
    """Hosts keep the parameters, sharded over *servers* of them."""

    whole_model: ClassVar[bool] = True

    method: Literal["parameter_server"]
    """parameter_server: hosts keep the parameters."""
    servers: Count = 1
    """Hosts that share the parameters."""

    @property
    def hosts(self) -> int:
        """One for each server."""
        return self.servers

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Add the servers, and what the GPUs exchange with them."""
        return parameter_server(
            schedule,
            step.model,
            servers=self.servers,
            optimizer=step.optimizer,
            gradient_dtype=step.gradient_dtype,
            code=self._code(step),
        )

    def _code(self, step: TrainingStep) -> Code | None:
        """How a GPU encodes all its gradients; None without compression."""
        if self.compression is None:
            return None
        dtype = step.gradient_dtype or step.model.precision
        tensors = [tensor for layer in step.model.layers for tensor in layer.tensors]
        reduction = self.compressed(_pushed)
        return reduction.code(Bucket.of(tensors, dtype, "")) if isinstance(reduction, Compressed) else None


def _pushed(bucket: Bucket) -> Iterator[Collective]:
    """The plain push of *bucket*."""
    yield _exchange("push", "reduce", 0, bucket.nbytes)


def parameter_server(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    servers: int = 1,
    optimizer: str = "sgd",
    gradient_dtype: str | None = None,
    code: Code | None = None,
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
    parameters = float(model.parameters * BYTES[model.precision]) / servers
    gradients = float(model.parameters * BYTES[dtype]) / servers
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


def _coded(body: list[Op], code: Code, gradients: float) -> list[Op]:
    """*body* between the kernels that decode what was pulled and those that encode its *gradients* (bytes)."""
    encoding = tuple(kernel for one in code.rounds for kernel in one.kernels)
    encode = Coding(name="encode", kernels=encoding, gradients=gradients, sent=code.sent, warm_up=code.warm_up)
    if not code.decode:
        return [*body, encode]
    decode = Coding(name="decode", kernels=code.decode, after=body[0].after, decodes=True)
    return [decode, *body, encode]


def _servers(
    model: Model, servers: int, replicas: int, optimizer: str, dtype: str, pushed: float, pulled: float
) -> Iterator[Program]:
    """Yield the program of each of *servers*, which hold equal shares of the states of *model*.

    *pushed*, *pulled*: bytes of the messages of a GPU and a server.
    """
    share = model.parameters / servers
    state = state_bytes(optimizer, model.precision, dtype)
    kept = {f"host.{category}": per_parameter * share for category, per_parameter in state.items()}
    gradients = float(model.parameters * BYTES[dtype]) / servers
    for server in range(servers):
        push, pull = _exchange("push", "reduce", server, pushed), _exchange("pull", "broadcast", server, pulled)
        # every arriving gradient is read and added to the sum
        adds = memory_bound(replicas * pushed + gradients)
        ops = pull, push, *_server_ops(model, push, adds, share, optimizer, dtype)
        yield Program(f"server {server}", ops, kept, on="host")


def _server_ops(
    model: Model, push: Collective, adds: Kernel, parameters: float, optimizer: str, dtype: str
) -> tuple[Op, ...]:
    """The sum of what was pushed, and the update."""
    total = Compute(
        name="add gradients",
        kernels=() if model.optimizer_seconds is not None else (adds,),
        stream=push.stream,
        on="host",
    )
    # on the same stream, so that the next step's pull waits for the update
    update = replace(update_op(model, Action("O", 0), parameters, optimizer, dtype), stream=push.stream, on="host")
    return total, update
