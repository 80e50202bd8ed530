"""The parameter server: hosts keep the parameters, GPUs pull them, compute, and push their gradients.

Synchronous; several servers shard the parameters evenly. Li et al., "Scaling Distributed Machine Learning with the
Parameter Server", OSDI 2014. That a server's port is shared by all GPUs makes its cost; it is written down nowhere.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.kernel import BYTES, memory_bound
from simulator.mesh import Axis
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from workloads.compute import update_op
from workloads.model import Model
from workloads.optimizer import state_bytes


def parameter_server(
    schedule: Schedule,
    model: Model,
    replicas: int,
    *,
    servers: int = 1,
    optimizer: str = "sgd",
    gradient_dtype: str | None = None,
) -> Schedule:
    """*replicas* copies of a one-stage *schedule*, and *servers* host ranks numbered after the GPUs.

    Server i and all GPUs form the axis ``ps.i``, the server at coordinate 0. A step broadcasts each server's shard,
    computes, reduces the gradients to the servers, and updates there.
    """
    (program,) = schedule.programs
    dtype = gradient_dtype or model.precision
    parameters = float(model.parameters * BYTES[model.precision]) / servers
    gradients = float(model.parameters * BYTES[dtype]) / servers
    pulls = [_exchange("pull", "broadcast", server, parameters) for server in range(servers)]
    body = [op for op in program.ops if not (op.action and op.action.phase == "O")]
    body[0] = replace(body[0], after=(*body[0].after, *(pull.name for pull in pulls)))
    pushes = [_exchange("push", "reduce", server, gradients, after=(body[-1].name,)) for server in range(servers)]
    held = {category: nbytes for category, nbytes in program.resident.items() if category != "optimizer"}
    gpu = Program("GPU", (*pulls, *body, *pushes), held)

    state = state_bytes(optimizer, model.precision, dtype)
    share = model.parameters / servers
    kept = {f"host.{category}": per_parameter * share for category, per_parameter in state.items()}
    programs = [gpu]
    for server in range(servers):
        ops = _server_ops(model, server, replicas, share, gradients, optimizer, dtype)
        programs.append(Program(f"server {server}", ops, kept, on="host"))

    spread = schedule.replicate("dp", replicas)
    gpus = tuple(range(replicas))
    axes = {f"ps.{server}": Axis(((replicas + server, *gpus),)) for server in range(servers)}
    return replace(
        spread,
        mesh=spread.mesh.extended(servers, axes),
        programs=tuple(programs),
        program_of=(0,) * replicas + tuple(range(1, servers + 1)),
    )


def _exchange(what: str, kind: str, server: int, nbytes: float, after: tuple[str, ...] = ()) -> Collective:
    axis = f"ps.{server}"
    name = f"{what} {server}"
    return Collective(name=name, kind=kind, over=axis, nbytes=nbytes, algorithm="direct", stream=axis, after=after)


def _server_ops(
    model: Model, server: int, replicas: int, parameters: float, gradients: float, optimizer: str, dtype: str
) -> tuple[Op, ...]:
    pull = _exchange("pull", "broadcast", server, float(parameters * BYTES[model.precision]))
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
    update = replace(update_op(model, 0, parameters, optimizer, dtype), stream=push.stream, on="host")
    return pull, push, total, update
