"""The parameter server: hosts keep the parameters; GPUs pull them, compute, and push their gradients.

Synchronous; several servers shard the parameters evenly. Li et al., "Scaling Distributed Machine Learning with the
Parameter Server", OSDI 2014. Its cost follows from all GPUs sharing the port of a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from simulator.document import Count
from simulator.kernel import BYTES, memory_bound
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from simulator.schedule.mesh import Axis
from simulator.schedule.order import Action
from workloads.compute import update_op
from workloads.memory.optimizer import Optimizer, resident_states
from workloads.memory.sharding import of_shard
from workloads.model import Model
from workloads.operators.parameter import REPLICAS
from workloads.parallelism import DataMethod, TrainingStep


class ParameterServer(DataMethod):
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
        )


def parameter_server(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    servers: int = 1,
    optimizer: str | Optimizer = "sgd",
    gradient_dtype: str | None = None,
) -> Schedule:
    """Return *schedule*, of one stage, with replicas along ``dp`` and *servers* host ranks, numbered after the GPUs.

    *replicas*: make so many copies first; None: the mesh has the axis. Server i and all GPUs form the axis ``ps.i``,
    with the server at coordinate 0. A step broadcasts each server's shard, computes, reduces the gradients to the
    servers, and updates there.
    """
    schedule = schedule if replicas is None else schedule.replicate(REPLICAS, replicas)
    (program,) = schedule.programs
    (count,) = schedule.degrees(REPLICAS)
    dtype = gradient_dtype or model.precision
    parameters = float(model.trainable_parameters * BYTES[model.precision]) / servers
    gradients = float(model.trainable_parameters * BYTES[dtype]) / servers
    pulls = [_exchange("pull", "broadcast", server, parameters) for server in range(servers)]
    body = [op for op in program.ops if not (op.action and op.action.phase == "O")]
    body[0] = replace(body[0], after=(*body[0].after, *(pull.name for pull in pulls)))
    pushes = [_exchange("push", "reduce", server, gradients, after=(body[-1].name,)) for server in range(servers)]
    held = {category: nbytes for category, nbytes in program.resident.items() if category != "optimizer"}
    gpu = Program("GPU", (*pulls, *body, *pushes), held)

    gpus = tuple(range(count))
    axes = {f"ps.{server}": Axis(((count + server, *gpus),)) for server in range(servers)}
    return replace(
        schedule,
        mesh=schedule.mesh.extended(servers, axes),
        programs=(gpu, *_servers(model, servers, count, optimizer, dtype)),
        program_of=(0,) * count + tuple(range(1, servers + 1)),
    )


def _exchange(what: str, kind: str, server: int, nbytes: float, after: tuple[str, ...] = ()) -> Collective:
    axis = f"ps.{server}"
    name = f"{what} {server}"
    return Collective(name=name, kind=kind, over=axis, nbytes=nbytes, algorithm="direct", stream=axis, after=after)


def _servers(model: Model, servers: int, replicas: int, optimizer: str | Optimizer, dtype: str) -> Iterator[Program]:
    """Yield the program of each of *servers*, which hold equal shares of the states of *model*."""
    trained = [tensor for tensor in model.tensors_of({layer.name for layer in model.layers}) if tensor.trainable]
    states = resident_states(trained, optimizer, model.precision, dtype)
    kept = {f"host.{category}": nbytes / servers for category, nbytes in states.items()}
    update = update_op(model, Action("O", 0), trained, optimizer, dtype)
    count = model.trainable_parameters
    update = replace(update, kernels=tuple(of_shard(kernel, count, count / servers) for kernel in update.kernels))
    parameters = float(model.trainable_parameters * BYTES[model.precision]) / servers
    gradients = float(model.trainable_parameters * BYTES[dtype]) / servers
    for server in range(servers):
        ops = _server_ops(model, server, replicas, parameters, gradients, update)
        yield Program(f"server {server}", ops, kept, on="host")


def _server_ops(
    model: Model, server: int, replicas: int, parameters: float, gradients: float, update: Compute
) -> tuple[Op, ...]:
    pull = _exchange("pull", "broadcast", server, parameters)
    push = _exchange("push", "reduce", server, gradients)
    # every arriving gradient is read and added to the sum
    adds = memory_bound((replicas + 1) * gradients)
    total = Compute(
        name="add gradients",
        kernels=() if model.optimizer_seconds is not None else (adds,),
        stream=push.stream,
        on="host",
    )
    # on the same stream, so that the next step's pull waits for the update
    return pull, push, total, replace(update, stream=push.stream, on="host")
