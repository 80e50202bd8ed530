"""The first pass: from a model and a pipeline order to the computation of every pipeline rank, nothing communicated.

There is one Compute per layer and phase, named ``<action>.<layer>``, so that later passes find their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simulator.errors import ScheduleError
from simulator.kernel import Kernel
from simulator.mesh import Mesh
from simulator.order import Action, Order
from simulator.schedule import Compute, Program, Schedule
from workloads.model import Layer, Model
from workloads.optimizer import optimizer_kernels, state_bytes


def compute(
    model: Model,
    order: Order,
    *,
    micro_batch_size: int,
    stages: Sequence[Sequence[Layer]] | None = None,
    optimizer: str = "sgd",
    gradient_dtype: str | None = None,
) -> Schedule:
    """One program for each row of *order*, on a mesh of one axis, ``pp``.

    *stages* are the layers of each stage; none given, the model is one stage. *gradient_dtype* is the model's precision
    unless given. Each program ends with the optimizer step over its own parameters.
    """
    stages = stages or [model.layers]
    if order.stages != len(stages):
        raise ScheduleError(f"the order has {order.stages} stages, but the model is cut into {len(stages)}")
    gradient_dtype = gradient_dtype or model.precision
    names = [layer.name for layer in model.layers]
    if len(set(names)) != len(names):
        raise ScheduleError(f"the layers of {model.name} must have names of their own")
    programs = []
    for rank, row in enumerate(order.rows):
        ops = [op for action in row for op in _passes(action, stages[action.stage], micro_batch_size)]
        own = {action.stage for action in row}
        parameters = sum(layer.parameters for stage in own for layer in stages[stage])
        update = update_op(model, min(own), parameters, optimizer, gradient_dtype)
        held = state_bytes(optimizer, model.precision, gradient_dtype)
        resident = {category: share * parameters for category, share in held.items()}
        programs.append(Program(f"stage {rank}", (*ops, update), resident))
    pipeline = len(programs)
    return Schedule(Mesh.regular({"pp": pipeline}), tuple(programs), tuple(range(pipeline)))


def update_op(model: Model, stage: int, parameters: float, optimizer: str, gradient_dtype: str) -> Compute:
    """The optimizer step over *parameters* (a count), as the last op of a program."""
    kernels: tuple[Kernel, ...]
    if model.optimizer_seconds is None:
        kernels = optimizer_kernels(parameters, optimizer, model.precision, gradient_dtype)
    else:
        kernels = (Kernel(seconds=model.optimizer_seconds),) if model.optimizer_seconds else ()
    return Compute(name=f"{stage}O", action=Action("O", stage), kernels=kernels)


def _passes(action: Action, layers: Sequence[Layer], micro_batch_size: int) -> Iterator[Compute]:
    forward = action.phase == "F"
    for layer in layers if forward else reversed(layers):
        kept: Mapping[str, float] = {"activations": layer.activation_bytes(micro_batch_size)}
        yield Compute(
            name=f"{action}.{layer.name}",
            action=action,
            layer=layer.name,
            kernels=layer.forward(micro_batch_size) if forward else layer.backward(micro_batch_size),
            allocates=kept if forward else {},
            frees={} if forward else kept,
        )
