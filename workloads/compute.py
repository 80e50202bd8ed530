"""The first pass: from a model and a pipeline order to the computation of every pipeline rank, nothing communicated.

There is one Compute per layer and phase, named ``<action>.<layer>``, so that later passes find their place. Actions
that an order runs together are computed one after the other, as it lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from simulator.errors import ScheduleError
from simulator.kernel import Kernel
from simulator.mesh import Mesh
from simulator.order import PLACEHOLDER, Action, Order
from simulator.program import Program, TemplatedOps
from simulator.schedule import Compute, Op, Schedule
from workloads.activations import with_activations
from workloads.model import Layer, Model
from workloads.optimizer import optimizer_kernels, state_bytes

WeightVersions = Callable[[int, int], int]
"""(stage, stages) -> how many versions of its weights the stage keeps: that of pipedream and of pipedream_2bw."""


def compute(
    model: Model,
    order: Order,
    *,
    micro_batch_size: int,
    stages: Sequence[Sequence[Layer]] | None = None,
    optimizer: str = "sgd",
    gradient_dtype: str | None = None,
    weight_versions: WeightVersions | None = None,
    separate: bool = False,
) -> Schedule:
    """One program for each row of *order*, on a mesh of one axis, ``pp``.

    *stages* are the layers of each stage; none given, the model is one stage. *gradient_dtype* is the model's precision
    unless given. Where the order does not say when the optimizer runs, each program ends with the step over its own
    parameters; *separate* as in `optimizer_kernels`. *weight_versions* of an asynchronous order; one version unless
    given. Raises `ScheduleError`.
    """
    stages = stages or [model.layers]
    if order.stages != len(stages):
        raise ScheduleError(f"the order has {order.stages} stages, but the model is cut into {len(stages)}")
    gradient_dtype = gradient_dtype or model.precision
    names = [layer.name for layer in model.layers]
    if len(set(names)) != len(names):
        raise ScheduleError(f"the layers of {model.name} must have names of their own")
    held = state_bytes(optimizer, model.precision, gradient_dtype)

    def update(action: Action, covered: Sequence[int]) -> Compute:
        parameters = _parameters(model, stages, covered)
        return update_op(model, action.stage, parameters, optimizer, gradient_dtype, action.micro_batch, separate)

    def program(rank: int, row: Sequence[Action]) -> Program:
        own = sorted({action.stage for action in row})
        templates: dict[Action, tuple[Op, ...]] = {}
        blocks: list[tuple[Action, int | None]] = []
        for action in row:
            if action.phase == "O":
                templates[action] = (update(action, [action.stage]),)
                blocks.append((action, None))
                continue
            blank = Action(action.phase, action.stage, PLACEHOLDER)
            if blank not in templates:
                templates[blank] = tuple(_passes(blank, stages[action.stage], micro_batch_size))
            blocks.append((blank, action.micro_batch))
        if not any(action.phase == "O" for action in row):
            end = Action("O", own[0])
            templates[end] = (update(end, own),)
            blocks.append((end, None))
        resident = {category: share * _parameters(model, stages, own) for category, share in held.items()}
        if weight_versions:
            versions = {stage: weight_versions(stage, len(stages)) - 1 for stage in own}
            copies = sum(more * _parameters(model, stages, [stage]) for stage, more in versions.items())
            resident["parameters"] += held["parameters"] * copies
        return with_activations(
            Program(f"stage {rank}", TemplatedOps.from_names(templates, blocks), resident), model, micro_batch_size
        )

    programs = tuple(program(rank, row) for rank, row in enumerate(order.rows))
    return Schedule(Mesh.regular({"pp": len(programs)}), programs, tuple(range(len(programs))))


def update_op(
    model: Model,
    stage: int,
    parameters: float,
    optimizer: str,
    gradient_dtype: str,
    micro_batch: int | None = None,
    separate: bool = False,
) -> Compute:
    """The optimizer step over *parameters* (a count), after *micro_batch* if it is one of an asynchronous order."""
    kernels: tuple[Kernel, ...]
    if model.optimizer_seconds is None:
        kernels = optimizer_kernels(
            parameters, optimizer, model.precision, gradient_dtype, fused=model.fused, separate=separate
        )
    else:
        kernels = (Kernel(seconds=model.optimizer_seconds),) if model.optimizer_seconds else ()
    action = Action("O", stage, micro_batch)
    return Compute(name=str(action), action=action, kernels=kernels)


def _parameters(model: Model, stages: Sequence[Sequence[Layer]], own: Sequence[int]) -> int:
    """Of a rank that holds the stages *own*, tied embeddings on the last stage included."""
    return model.parameters_of({layer.name for stage in own for layer in stages[stage]})


def _passes(action: Action, layers: Sequence[Layer], micro_batch_size: int) -> Iterator[Compute]:
    for layer in layers if action.phase in "FR" else reversed(layers):
        kernels = {
            "F": layer.forward,
            "R": layer.forward,
            "B": layer.backward,
            "I": layer.backward_input,
            "W": layer.backward_weights,
        }[action.phase]
        yield Compute(name=f"{action}.{layer.name}", action=action, layer=layer.name, kernels=kernels(micro_batch_size))
