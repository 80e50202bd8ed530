"""The parameter server: hosts keep the parameters; GPUs pull them, compute, and push their gradients.

Several servers share the parameters. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI
2014. Its cost follows from all GPUs sharing the port of a server. By default it is synchronous, and a step pulls the
whole model, computes, and pushes all gradients. With *overlap* or *staleness* parts are exchanged one by one
(`workloads.parallelism.methods._push_pull`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from simulator.document import Count, Fault, Flag, Index, Size
from simulator.kernel import BYTES, memory_bound
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from simulator.schedule.mesh import Axis
from simulator.schedule.order import Action
from workloads.compute import update_op
from workloads.gradients.reduce import weights_by_stage
from workloads.memory.optimizer import state_bytes
from workloads.model import Model
from workloads.operators.parameter import REPLICAS
from workloads.parallelism import DataMethod, TrainingStep
from workloads.parallelism.methods._push_pull import PushPull, parts_of, whole_shares
from workloads.steady_state import SteadyState


class ParameterServer(DataMethod):
    """Hosts keep the parameters, sharded over *servers* of them."""

    whole_model: ClassVar[bool] = True

    method: Literal["parameter_server"]
    """parameter_server: hosts keep the parameters."""
    servers: Count = 1
    """Hosts that share the parameters."""
    overlap: Flag = False
    """Gradients are pushed beside the backward pass, layer by layer, and weights pulled before a layer reads them."""
    partition: Size | None = None
    """Bytes of the pieces in which tensors are pushed and pulled, for overlap; by default whole tensors. BytePS has
    4 MB."""
    priority: Flag = False
    """Of the pieces that wait, that of the first layer goes first (BytePS, ByteScheduler), for overlap; by default the
    one that is ready first."""
    staleness: Index | Literal["async"] = 0
    """Steps that a GPU may be ahead of the slowest one; 0: none (synchronous); async: any number."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.partition is not None and not self.overlap:
            raise Fault("partition", "belongs to overlap: true; without it each server has one piece")
        if self.priority and not self.overlap:
            raise Fault("priority", "belongs to overlap: true; without it each server has one piece")
        return self

    @property
    def in_parts(self) -> bool:
        """True if parts are exchanged one by one."""
        return self.overlap or self.staleness != 0

    def period(self, steps: int) -> SteadyState | None:
        """A step before and a step after the measured ones; of GPUs at their own pace, enough to tell the mean."""
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
        )

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
"""Steps of the fastest GPU over which a mean is taken where GPUs go at their own pace."""

LEAD = 4
"""Steps that a GPU may need to be one step ahead of the slowest, before the measured ones: then one that is a third
slower than the others holds all of them back."""


def parameter_server(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    servers: int = 1,
    optimizer: str = "sgd",
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
    parameters = float(model.parameters * BYTES[model.precision]) / servers
    gradients = float(model.parameters * BYTES[dtype]) / servers
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


def _servers(model: Model, servers: int, replicas: int, optimizer: str, dtype: str) -> Iterator[Program]:
    """Yield the program of each of *servers*, which hold equal shares of the states of *model*."""
    share = model.parameters / servers
    state = state_bytes(optimizer, model.precision, dtype)
    kept = {f"host.{category}": per_parameter * share for category, per_parameter in state.items()}
    gradients = float(model.parameters * BYTES[dtype]) / servers
    for server in range(servers):
        ops = _server_ops(model, server, replicas, share, gradients, optimizer, dtype)
        yield Program(f"server {server}", ops, kept, on="host")


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
    update = replace(update_op(model, Action("O", 0), parameters, optimizer, dtype), stream=push.stream, on="host")
    return pull, push, total, update
