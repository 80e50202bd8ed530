"""Sharded states: how many replicas share each of them, and what a rank keeps and updates of them.

With d replicas and sizes in that order, DDP is (1, 1, 1), ZeRO-1 (1, 1, d), ZeRO-2 (1, d, d), ZeRO-3 and FSDP
(d, d, d) (Rajbhandari et al., arXiv:1910.02054), and hybrid shards and MiCS (h, h, h) (Zhang et al. 2022, "MiCS:
near-linear scaling for training gigantic model on public cloud", arXiv:2205.00119). AMSP lets each state have a size of
its own (Chen et al. 2023, "AMSP: reducing communication overhead of ZeRO for efficient LLM training",
arXiv:2311.00257, section 4).

Groups are nested, so that a shard of one state lies within a shard of another: the parameters of a rank are needed most
often, and change least. Neighbours form a group. The place i of a rank among the replicas decides its shards: i mod p
of the parameters, i mod g of the gradients, i mod o of the optimizer states.

Common to ZeRO and FSDP: resident states divided by the number of shards, an optimizer step over a shard, and two
gradient buffers, one of them filled while the other is reduced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Literal

from clustersim.simulator.hardware.kernel import BYTES, Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Section
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.program import Names, Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.architectures.shape import nearest_divisors
from clustersim.workloads.data_parallel.buckets import Weights, reduced_axes
from clustersim.workloads.data_parallel.gradients import backward_ops, tensor_norms, updated_stages, weights_by_stage
from clustersim.workloads.memory.optimizer import CHUNK
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS

STATES = ("parameters", "gradients", "optimizer")
"""What is divided, in the order of group sizes."""

SHARD = "dp.shard"
"""Ranks of a group, if all groups that are smaller than the replicas have one size."""
PARAMETERS = "dp.parameters"
"""Ranks that share the parameters, if other states have other groups; likewise the next two."""
GRADIENTS = "dp.gradients"
OPTIMIZER_STATES = "dp.states"
OPTIMIZER = "dp.optimizer"
"""Ranks of one group of optimizer states with the same shard of the gradients."""
REPLICA = "dp.replica"
"""Ranks with the same shard of the optimizer states."""
UPDATED = "dp.updated"
"""Ranks of one group of optimizer states with the same shard of the parameters."""


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The ranks that share each state, out of *replicas*: 1 for a whole copy on each rank, None for all of them.

    Each size divides the next. A tensor with replicas of its own, such as an expert, is divided over all of these if a
    state is divided at all.
    """

    parameters: int | None
    gradients: int | None
    optimizer: int | None
    replicas: int

    @classmethod
    def of(cls, divided: Collection[str], replicas: int, hybrid: int | None = None) -> GroupSizes:
        """The states *divided* are shared by *hybrid* neighbours, or by all *replicas*; of others each has a copy."""
        size = hybrid if hybrid is not None and hybrid < replicas else None
        parameters, gradients, optimizer = (size if state in divided else 1 for state in STATES)
        return cls(parameters, gradients, optimizer, replicas)

    def divides(self, state: str) -> bool:
        """True if ranks hold shards of *state*."""
        return bool(getattr(self, state) != 1)

    def ranks(self, state: str, replicas: int | None = None) -> int:
        """The ranks that share *state*; *replicas*: those of one program, if not all have the same number."""
        size: int | None = getattr(self, state)
        return (replicas or self.replicas) if size is None else size

    def axis(self, outer: str, inner: str = "") -> str:
        """The axis of the ranks of a group of *outer*, a state or "replicas", with the same shard of *inner*."""
        return self._axes()[self.ranks(outer), self.ranks(inner) if inner else 1]

    def with_axes(self, schedule: Schedule) -> Schedule:
        """*schedule* with the axes of these groups, but those of single ranks."""
        several = {name: key for key, name in self._axes().items() if name != REPLICAS and key[0] > key[1]}
        return with_neighbours(schedule, several) if several else schedule

    def _axes(self) -> dict[tuple[int, int], str]:
        """Axes by (ranks of neighbours, stride within them). Equal groups have one axis; all replicas are ``dp``."""
        (p, g, o), n = map(self.ranks, STATES), self.replicas
        cut = {size for size in (p, g, o) if size not in (1, n)}
        found: dict[tuple[int, int], str] = {(n, 1): REPLICAS}
        found |= {(size, 1): SHARD for size in cut if len(cut) == 1}
        for key, name in (
            ((p, 1), PARAMETERS),
            ((g, 1), GRADIENTS),
            ((o, 1), OPTIMIZER_STATES),
            ((o, g), OPTIMIZER),
            ((n, o), REPLICA),
            ((o, p), UPDATED),
        ):
            found.setdefault(key, name)
        return found


class Groups(Section):
    """Replicas that share each of the three states: a number of neighbours, 1 for a whole copy on each rank, or all."""

    parameters: Count | Literal["all"] = "all"
    """Replicas that share the parameters; they are gathered within the group before each use."""
    gradients: Count | Literal["all"] = "all"
    """Replicas that share the gradients; they are reduced within the group in every backward pass."""
    optimizer: Count | Literal["all"] = "all"
    """Replicas that share the optimizer states; gradients are summed over the other replicas once a step."""

    def sizes(self, replicas: int) -> GroupSizes:
        """Of *replicas* ranks. Raises `ScenarioError` unless each size divides the next, and the last all replicas."""
        given = [None if size == "all" else size for size in (self.parameters, self.gradients, self.optimizer)]
        made = GroupSizes(given[0], given[1], given[2], replicas)
        names = (*(f"groups.{state}" for state in STATES), "the replicas")
        nested = (*map(made.ranks, STATES), replicas)
        for place, (inner, outer) in enumerate(pairwise(nested)):
            if replicas > 1 and outer % inner:
                good = " or ".join(map(str, nearest_divisors(outer, min(inner, outer))))
                raise ScenarioError(
                    f"{names[place]} = {inner} does not divide {names[place + 1]} ({outer}), but groups are nested; "
                    f"try {good}"
                )
        return made


def check_hybrid(replicas: int, hybrid: int | None) -> None:
    """Raise `ScenarioError` unless groups of *hybrid* ranks divide the *replicas*."""
    if hybrid is None or replicas == 1:
        return
    if hybrid < 2:
        raise ScenarioError(f"hybrid = {hybrid} shards nothing; give 2 or more ranks to share the states, or use ddp")
    if replicas % hybrid:
        good = " or ".join(str(n) for n in nearest_divisors(replicas, hybrid) if n > 1)
        raise ScenarioError(f"hybrid = {hybrid} does not divide dp = {replicas}; try {good}")


def with_hybrid_axes(schedule: Schedule, shards: int) -> Schedule:
    """*schedule* with ``dp`` divided into `SHARD` (groups of *shards* neighbours) and `REPLICA` (across them)."""
    replicas = max(len(group) for group in schedule.mesh.axes[REPLICAS].groups)
    return with_neighbours(schedule, {SHARD: (shards, 1), REPLICA: (replicas, shards)})


def with_neighbours(schedule: Schedule, axes: Mapping[str, tuple[int, int]]) -> Schedule:
    """*schedule* with *axes*, each by (size, stride): replicas whose places are equal modulo stride, within neighbours.

    *size*: how many neighbours.
    """
    groups = schedule.mesh.axes[REPLICAS].groups

    def joined(size: int, stride: int) -> Axis:
        blocks = (group[begin : begin + size] for group in groups for begin in range(0, len(group), size))
        return Axis(tuple(block[place::stride] for block in blocks for place in range(stride)))

    return replace(schedule, mesh=schedule.mesh.extended(0, {name: joined(*key) for name, key in axes.items()}))


GATHERED_BYTES = 2.0
"""Bytes of an element of a gradient that ranks gather for Muon (arXiv:2502.16982, section 2.3: bf16)."""


def sharded_states(
    program: Program,
    categories: Collection[str],
    shards: Mapping[str, int],
    stages: Mapping[int, Sequence[Weights]],
    sharding: Mapping[str, str],
) -> Program:
    """*program* with the resident states of *categories* sharded, and the optimizer step with what it holds.

    *shards*: their number by the axis over which data parallelism reduces a tensor; 1 if not given. *sharding*: the
    axis of these shards. *stages*: the weights of each stage. The padding that makes all shards equal is not counted.
    If the step has products, ranks gather the gradients of the matrices before it (`_gathered_matrices`); if it has
    norms of tensors, ranks sum those of their parts (`tensor_norms`).
    """
    trained = {stage: [weights.trained for weights in several] for stage, several in stages.items()}
    parts = {name: _elements(stages if name == "parameters" else trained, stages, shards) for name in program.resident}
    resident = {
        name: nbytes * parts[name][1] / parts[name][0] if name in categories and parts[name][0] else nbytes
        for name, nbytes in program.resident.items()
    }
    if "optimizer" not in categories:
        return replace(program, resident=resident)
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and op.name in updates:
            elements = _elements(trained, updates[op.name], shards)
            held = {name: nbytes * elements[1] / max(1, elements[0]) for name, nbytes in op.allocates.items()}
            if any(kernel.flops for kernel in op.kernels):
                own = [weights for stage in updates[op.name] for weights in trained.get(stage, ())]
                yield from _gathered_matrices(op, own, sharding)
            kernels = tuple(of_shard(kernel, *elements) for kernel in op.kernels)
            op = changed(op, kernels=kernels, allocates=held, frees=held)
        yield op

    program = replace(program.map_ops(change), resident=resident)
    for axis, over in sharding.items():
        tensors = {stage: sum(len(own.over(axis).tensors) for own in several) for stage, several in trained.items()}
        program = tensor_norms(program, tensors, over)
    return program


def with_half_buckets(schedule: Schedule, model: Model) -> Schedule:
    """*schedule* with buckets of all gradients in the precision of *model*, beside gradients that are fp32.

    DistributedDataParallel makes them where it is constructed, from 16-bit parameters, whatever its hook reduces.
    *model* has its layers as one rank holds them. A rank without replicas has none.
    """

    def change(program: Program) -> Program:
        own = (weights for stage in weights_by_stage(program, model).values() for weights in stage)
        held = float(sum(weights.trained.parameters for weights in own) * BYTES[model.precision])
        return replace(program, resident={**program.resident, "buffers": program.resident.get("buffers", 0.0) + held})

    groups = schedule.mesh.axes[REPLICAS].groups if REPLICAS in schedule.mesh.axes else ()
    return schedule.map_programs(change) if any(len(group) > 1 for group in groups) else schedule


def _elements(
    stages: Mapping[int, Sequence[Weights]], chosen: Collection[int], shards: Mapping[str, int]
) -> tuple[int, float]:
    """The elements of the weights of the *chosen* stages: all, and those of one shard."""
    layers = [weights for stage in chosen for weights in stages.get(stage, ())]
    by_axis = {axis: sum(weights.over(axis).parameters for weights in layers) for axis in reduced_axes(layers)}
    return sum(by_axis.values()), sum(count / shards.get(axis, 1) for axis, count in by_axis.items())


def _gathered_matrices(op: Compute, own: Sequence[Weights], sharding: Mapping[str, str]) -> Iterator[Op]:
    """All-gathers of the 16-bit gradients of hidden matrices before *op*, a step with products of them.

    A rank has a part of a matrix, but its products need the whole. Every rank gathers all, the upper bound of Liu et
    al. 2025, "Muon is Scalable for LLM Training" (arXiv:2502.16982, section 2.3), and multiplies its share.
    """
    for axis, over in sharding.items():
        tensors = (tensor for weights in own for tensor in weights.over(axis).tensors if tensor.hidden)
        if nbytes := GATHERED_BYTES * sum(tensor.count for tensor in tensors):
            name = f"{op.name}.matrices{'' if axis == REPLICAS else f' over {axis}'}"
            yield Collective(name=name, action=op.action, kind="all_gather", over=over, nbytes=nbytes)


def of_shard(kernel: Kernel, elements: int, share: float) -> Kernel:
    """*kernel*, a pass or several over *elements*, for a *share* of them: as many passes with fewer launches each.

    A batch of products has fewer of them.
    """
    if not elements:
        return kernel
    if kernel.shape is not None:
        batch, *sides = kernel.shape
        fewer = max(1, ceil(batch * share / elements))
        part = fewer / batch
        return replace(
            kernel,
            flops=kernel.flops * part,
            nbytes=kernel.nbytes * part,
            launches=max(1, round(kernel.launches * part)),
            shape=(fewer, sides[0], sides[1], sides[2]),
        )
    passes = ceil(kernel.launches / max(1, ceil(elements / CHUNK)))
    return replace(
        kernel,
        flops=kernel.flops * share / elements,
        nbytes=kernel.nbytes * share / elements,
        seconds=None if kernel.seconds is None else kernel.seconds * share / elements,
        launches=passes * max(1, ceil(share / CHUNK)),
    )


def double_buffered(
    program: Program, stages: Mapping[int, Sequence[Weights]], gradient_dtype: str, axes: Collection[str]
) -> Program:
    """*program* with two gradient buffers: backward passes fill one bucket while a reduction empties the other.

    When a bucket is full, the computation waits until the bucket before it is reduced. So unreduced gradients are at
    most two buckets and the excess of one layer. DeepSpeed has two such buffers with ``contiguous_gradients`` and
    ``overlap_comm``, and so does torch's FSDP (``reduce_scatter_max_input_buffers``).

    *axes*: those over which the program has replicas. Tensors that are reduced over others need no buffer, such as
    experts of which every rank holds different ones.
    """
    width = BYTES[gradient_dtype]
    nbytes = {
        weights.name: float(sum(weights.trained.over(axis).parameters for axis in axes) * width)
        for own in stages.values()
        for weights in own
    }
    reductions = [op for op in program.distinct() if _reduces(op)]
    reduced = {op.action for op in reductions}
    filling = {names[0] for (action, _layer), names in backward_ops(program).items() if action in reduced}
    names = {op.name for op in reductions if op.stream != "compute"}

    def change(ops: Sequence[Op], before: Names) -> tuple[list[Op], Names]:
        issued, made = list(before), []
        for op in ops:
            new = op
            if op.name in filling and op.layer and nbytes[op.layer]:
                new = changed(op, allocates=added(op.allocates, "buffers", nbytes[op.layer]))
            if _computes(op) and len(issued) > 1:
                new = new if issued[-1] in op.after else changed(new, after=(*op.after, issued[-2]))
                del issued[:-1]
            made.append(new)
            if op.name in names:
                issued.append(op.name)
        return made, tuple(issued[-2:])

    return program.map_blocks(change)


def _reduces(op: Op) -> bool:
    return isinstance(op, Collective) and "buffers" in op.frees


def _computes(op: Op) -> bool:
    return isinstance(op, Compute) and op.stream == "compute"


def added(amounts: Mapping[str, float], category: str, nbytes: float) -> dict[str, float]:
    """*amounts* with *nbytes* more of *category*."""
    return {**amounts, category: amounts.get(category, 0.0) + nbytes}
