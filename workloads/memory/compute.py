"""The computation of every pipeline rank, from a model and a pipeline order. Ranks do not communicate yet.

An op is named ``<action>.<layer>``, so that later passes find their place. If the operators of a layer exchange data,
the layer is several ops (`operators.lowering`). Actions that an order runs together are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clustersim.simulator.hardware.kernel import BYTES, Kernel, measured
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action, Order
from clustersim.simulator.schedule.program import Program, TemplatedOps
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.memory.activations import with_activations
from clustersim.workloads.memory.optimizer import (
    NORMS,
    UPDATE,
    Optimizer,
    copied_gradient_bytes,
    foreach_bytes,
    resident_states,
    update_kernels,
)
from clustersim.workloads.operators.lowering import Overlap, lowered
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import REPLICAS, ParameterTensor, fuses

WeightVersions = Callable[[int, int], int]
"""(stage, stages) -> how many versions of its weights the stage keeps: that of pipedream and of pipedream_2bw."""

PIPELINE = "pp"
"""The axis of the pipeline ranks."""


def compute(
    model: Model,
    order: Order,
    *,
    micro_batch_size: int,
    stages: Sequence[Sequence[Layer]] | None = None,
    optimizer: str | Optimizer = "sgd",
    gradient_dtype: str | None = None,
    weight_versions: WeightVersions | None = None,
    unfused_update: bool = False,
    flat_update: bool = False,
    foreach_update: bool = False,
    overlap: Mapping[str, Overlap] | None = None,
    replicas: Sequence[int] | None = None,
) -> Schedule:
    """One program for each row of *order*, on a mesh of one axis, ``pp``.

    *model* has its layers as one rank holds them. *stages*: the layers of each stage; default: one stage.
    *gradient_dtype*: default is the model's precision. Where the order does not say when the optimizer runs, each
    program ends with the step over its own parameters; *unfused_update* and *flat_update* as in `optimizer_kernels`,
    *foreach_update* as in `update_op`. *weight_versions*: of an asynchronous order; default one. *overlap* as in
    `lowered`. *replicas*: the number of ranks that share the micro-batches of each row, round-robin; each has a program
    of its own, and the axis ``dp`` joins them. Raises `ScheduleError`.
    """
    stages = stages or [model.layers]
    if order.stages != len(stages):
        raise ScheduleError(f"the order has {order.stages} stages, but the model is cut into {len(stages)}")
    names = [layer.name for layer in model.layers]
    if len(set(names)) != len(names):
        raise ScheduleError(f"the layers of {model.name} must have names of their own")
    dtype = gradient_dtype or model.precision
    stage_programs = _StagePrograms(
        model,
        stages,
        micro_batch_size,
        optimizer,
        dtype,
        weight_versions,
        unfused_update=unfused_update,
        flat_update=flat_update,
        foreach_update=foreach_update,
        overlap=overlap or {},
    )
    if replicas is None:
        programs = tuple(stage_programs.program(f"stage {rank}", row) for rank, row in enumerate(order.rows))
        return Schedule(Mesh.regular({PIPELINE: len(programs)}), programs, tuple(range(len(programs))))
    return _replicated(order, replicas, stage_programs)


def _replicated(order: Order, replicas: Sequence[int], stage_programs: _StagePrograms) -> Schedule:
    """Replica k of a row with n replicas runs micro-batches k, k + n, k + 2 n ... in the order of the row."""
    if len(replicas) != len(order.rows):
        raise ScheduleError(f"{len(replicas)} numbers of replicas are given for {len(order.rows)} pipeline ranks")
    for rank, count in enumerate(replicas):
        if order.micro_batches % count:
            raise ScheduleError(
                f"the {count} replicas of pipeline rank {rank} do not divide {order.micro_batches} micro-batches"
            )
    programs: list[Program] = []
    groups: list[tuple[int, ...]] = []
    for rank, (row, count) in enumerate(zip(order.rows, replicas, strict=True)):
        groups.append(tuple(range(len(programs), len(programs) + count)))
        for replica in range(count):
            own = [action for action in row if action.micro_batch is None or action.micro_batch % count == replica]
            role = f"stage {rank}" if count == 1 else f"stage {rank}, replica {replica}"
            programs.append(stage_programs.program(role, own))
    ranks = tuple(range(len(programs)))
    return Schedule(Mesh(len(ranks), {PIPELINE: Axis((ranks,)), REPLICAS: Axis(tuple(groups))}), tuple(programs), ranks)


@dataclass(frozen=True)
class _StagePrograms:
    """Makes the program of a pipeline rank from its row of the order."""

    model: Model
    stages: Sequence[Sequence[Layer]]
    micro_batch_size: int
    optimizer: str | Optimizer
    gradient_dtype: str
    weight_versions: WeightVersions | None
    unfused_update: bool
    flat_update: bool
    foreach_update: bool
    overlap: Mapping[str, Overlap]

    def program(self, role: str, row: Sequence[Action]) -> Program:
        """The actions of *row*, one template for each phase of a stage, then the optimizer step unless in the row."""
        own = sorted({action.stage for action in row})
        # by phase and stage; of the optimizer by action
        templates: dict[tuple[Any, ...], tuple[Op, ...]] = {}
        blocks: list[tuple[tuple[Any, ...], int | None]] = []
        for action in row:
            if action.phase == "O":
                templates[action] = (self._update(action, [action.stage]),)
                blocks.append((action, None))
                continue
            template = action[:2]
            if template not in templates:
                templates[template] = tuple(self._passes(Action(*template, PLACEHOLDER)))
            blocks.append((template, action.micro_batch))
        if not any(action.phase == "O" for action in row):
            end = Action("O", own[0])
            templates[end] = (self._update(end, own),)
            blocks.append((end, None))
        program = Program(role, TemplatedOps.from_names(templates, blocks), self._resident(own))
        return with_activations(program, self.model, self.micro_batch_size)

    def _passes(self, action: Action) -> Iterator[Op]:
        layers = self.stages[action.stage]
        for layer in layers if action.phase in "FR" else reversed(layers):
            yield from lowered(action, layer, self.micro_batch_size, self.overlap)

    def _update(self, action: Action, stages: Sequence[int]) -> Compute:
        return update_op(
            self.model,
            action,
            self._tensors(stages),
            self.optimizer,
            self.gradient_dtype,
            unfused_update=self.unfused_update,
            flat_update=self.flat_update,
            foreach_update=self.foreach_update,
        )

    def _resident(self, own: Sequence[int]) -> dict[str, float]:
        """Bytes held during the whole step by a rank with the stages *own*, by memory category."""
        resident = resident_states(self._tensors(own), self.optimizer, self.model.precision, self.gradient_dtype)
        if self.weight_versions:
            versions = {stage: self.weight_versions(stage, len(self.stages)) - 1 for stage in own}
            copies = sum(more * self._trainable([stage]) for stage, more in versions.items())
            resident["parameters"] += BYTES[self.model.precision] * copies
        return resident

    def _trainable(self, own: Sequence[int]) -> int:
        """The trained parameters of a rank with the stages *own*."""
        return sum(tensor.count for tensor in self._tensors(own) if tensor.trainable)

    def _tensors(self, own: Sequence[int]) -> list[ParameterTensor]:
        """The tensors of a rank with the stages *own*, with a copy of tied embeddings on the last stage."""
        return self.model.tensors_of({layer.name for stage in own for layer in self.stages[stage]})


def update_op(
    model: Model,
    action: Action,
    tensors: Sequence[ParameterTensor],
    optimizer: str | Optimizer,
    gradient_dtype: str,
    *,
    unfused_update: bool = False,
    flat_update: bool = False,
    foreach_update: bool = False,
) -> Compute:
    """The optimizer step *action* over *tensors*.

    It holds `copied_gradient_bytes` while it runs, and `foreach_bytes` with *foreach_update*.
    """
    kernels: tuple[Kernel, ...]
    if model.optimizer_seconds is None:
        kernels = update_kernels(
            tensors,
            optimizer,
            model.precision,
            gradient_dtype,
            fused=fuses(model.fused, "optimizer"),
            unfused_update=unfused_update,
            flat_update=flat_update,
        )
    else:
        kernels = (measured(model.optimizer_seconds),) if model.optimizer_seconds else ()
    trained = sum(tensor.count for tensor in tensors if tensor.trainable)
    copied = trained * copied_gradient_bytes(gradient_dtype, unfused_update=unfused_update)
    listed = trained * foreach_bytes(optimizer) if foreach_update else 0.0
    held = {name: nbytes for name, nbytes in (("gradients", copied), ("optimizer", listed)) if nbytes}
    named = tuple(kernel if kernel.operation == NORMS else replace(kernel, operation=UPDATE) for kernel in kernels)
    return Compute(name=str(action), action=action, kernels=named, allocates=held, frees=held)
