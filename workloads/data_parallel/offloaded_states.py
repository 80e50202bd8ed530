"""Optimizer states, gradients and parameters off the GPU: ZeRO-Offload, ZeRO-Infinity, FSDP's and Megatron's.

Ren et al. 2021 (arXiv:2101.06840): gradients leave the GPU in the backward pass, cores of the host update the
parameters, and these come back, 4 bytes per parameter in all in 16 bits. Sharded over d ranks each rank moves and
updates 1/d. Rajbhandari et al. 2021 (arXiv:2104.07857): parameters and optimizer states may be on the host or on NVMe
drives. The pass applies to a complete schedule, with or without data parallelism.

Gradients on the host leave the GPU in every micro-batch. DeepSpeed adds them up on the GPU: what the host has so far is
copied in, and the sum out (runtime/zero/stage_1_and_2.py, ``async_accumulate_grad_in_cpu_via_gpu``; stage3.py,
``partition_grads``). FSDP adds them up on the host. Gradients on the GPU leave it once, when those of all micro-batches
are added up. Unsent gradients are at most those of two copies: computation waits for the copy before the last one.

Parameters are partitioned by bandwidth (Rajbhandari et al. 2021, section 6.1): every rank fetches its own shard over
its own PCIe link, and the ranks gather the layer. A shard is copied to the GPU one layer before it is gathered, and
read from a drive one layer before that (section 6.2). A single rank fetches whole layers, and a rank the whole of
experts that no other rank has.

Not modelled: the check of the norm of gradients on the host, which for ZeRO-3 reads them once more; contention of the
update with copies for the memory of the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from clustersim.simulator.hardware.kernel import BYTES, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.data_parallel.gradients import backward_ops, final_backwards, updated_stages
from clustersim.workloads.data_parallel.host_optimizer import (
    BEGIN,
    ON_HOST,
    READ,
    TO_GPU,
    TO_HOST,
    HeldStates,
    Places,
    held_by,
    with_host_updates,
    with_places,
)
from clustersim.workloads.data_parallel.parameter_gathers import unsharded
from clustersim.workloads.data_parallel.sharded_states import PARAMETERS, SHARD, added
from clustersim.workloads.memory.optimizer import Optimizer
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS, ParameterTensor


def offloaded_states(
    schedule: Schedule, model: Model, places: Places, *, optimizer: Optimizer, gradient_dtype: str | None = None
) -> Schedule:
    """Return *schedule* with its states where *places* has them.

    *model* has its layers as one rank holds them. Raises `ScenarioError` for an optimizer without states, and
    for an asynchronous pipeline order.
    """
    if model.optimizer_seconds is not None:
        raise ScenarioError("the model has a measured time of its optimizer, whose parameters and states are not known")
    if schedule.batches > 1:
        raise ScenarioError(
            "needs one update of the weights, after all of a simulation: take a pipeline order that flushes, such as "
            "1f1b, and gradients that are reduced in each step"
        )
    named = (weights.reduced_over[-1] for layer in model.layers for weights in layer.tensors)
    axes = [axis for axis in dict.fromkeys((REPLICAS, SHARD, PARAMETERS, *named)) if axis in schedule.mesh.axes]
    degrees = {axis: schedule.degrees(axis) for axis in axes}
    programs = []
    for number, program in enumerate(schedule.programs):
        held = held_by(program, model, optimizer, gradient_dtype or model.precision, places)
        own = {axis: several[number] for axis, several in degrees.items() if several[number] > 1}
        programs.append(program if held is None else _offloaded(program, held, places, own))
    return replace(schedule, programs=tuple(programs))


def _offloaded(program: Program, held: HeldStates, places: Places, degrees: Mapping[str, int]) -> Program:
    """Return *program* with its states moved; *degrees*: the number of shards by axis."""
    copying, last_copy = with_gradient_copies(program, held, places)
    if places.delayed or places.parameters != "gpu":
        begin = OpBlock((Compute(name=BEGIN, kernels=()),))
        copying = copying.with_templated_ops(TemplatedOps([begin, *copying.blocks]))
    if places.parameters != "gpu":
        copying = with_fetches(copying, held, places, degrees)
    return with_places(with_host_updates(copying, held, places, last_copy), held, places)


BUCKET = ".bucket"
"""Part of the name of every op that reduces a bucket (`workloads.data_parallel.gradients`)."""


def with_gradient_copies(program: Program, held: HeldStates, places: Places) -> tuple[Program, dict[str, str]]:
    """Return *program* with the copies of its gradients, and for each update the name of the last copy before it."""
    writer = _Writer(program, held, places)
    return writer.written(), writer.last_copy


@dataclass
class _Writer:
    """Writes the ops of *program* with copies. *last_copy*: by update, the name of the last copy before it."""

    program: Program
    held: HeldStates
    places: Places
    last_copy: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._updates = updated_stages(self.program)
        self._final = final_backwards(self.program, self._updates)
        everything = self.places.gradients == "host"
        self._changed = None if everything else {None, *(action.micro_batch for action in self._final)}
        program = self.program = self.program.materialise(self._changed)
        backward = backward_ops(program)
        self._first = {names[0]: layer for (_, layer), names in backward.items()}
        self._last = {names[-1]: layer for (_, layer), names in backward.items()}
        self._reduced = {op.action for op in program.distinct() if _reduces(op)}
        self._elements = {one.name: one.trained.parameters for own in self.held.stages.values() for one in own}
        self._pending: dict[str, int] = {}
        self._sent: set[tuple[str, ...]] = set()
        self._issued: list[str] = []

    def written(self) -> Program:
        """Return the program with copies. Micro-batches whose gradients stay on the GPU keep their templates."""
        blocks = []
        for block in self.program.blocks:
            if self._changed is None or block.micro_batch in self._changed:
                ops = tuple(op for place in range(len(block.ops)) for op in self._at(block.ops, place))
                blocks.append(OpBlock(ops, block.micro_batch))
            else:
                blocks.append(block)
        return self.program.with_templated_ops(TemplatedOps(blocks))

    def _at(self, ops: Sequence[Op], place: int) -> Iterator[Op]:
        """Yield the op at *place* of a block, as it becomes, and what follows it."""
        op = ops[place]
        if op.name in self._updates:
            self.last_copy[op.name] = self._issued[-1] if self._issued else ""
            self._sent.clear()
        yield self._waiting(op)
        if op.name in self._last and op.action and self._copied(op.action):
            layer = self._last[op.name]
            self._pending[layer] = self._elements.get(layer, 0)
        if self._completes(op, ops[place + 1 : place + 2]):
            yield from self._out(op)

    def _copied(self, action: Action) -> bool:
        return self.places.gradients == "host" or action in self._final

    def _completes(self, op: Op, following: Sequence[Op]) -> bool:
        """True if the pending gradients are complete after *op*: the last reduction in a row, or a layer without."""
        if not sum(self._pending.values()):
            return False
        if op.action not in self._reduced:
            return op.name in self._last
        return _reduces(op) and not any(map(_reduces, following))

    def _waiting(self, op: Op) -> Op:
        """*op*, a computation of the backward pass, with the layer's gradients and behind the copy before the last."""
        if not isinstance(op, Compute) or op.name not in self._first or self.places.gradients == "gpu":
            return op
        if len(self._issued) > 1:
            op = replace(op, after=(*op.after, self._issued[-2]))
        if op.action in self._reduced:
            return op
        nbytes = float(self._elements.get(self._first[op.name], 0) * self.held.element["gradients"])
        return replace(op, allocates=added(op.allocates, "buffers", nbytes)) if nbytes else op

    def _out(self, op: Op) -> Iterator[Op]:
        """Yield the copy of the pending gradients, complete after *op*, with what adds them up."""
        assert op.action
        layers, count = tuple(self._pending), sum(self._pending.values())
        self._pending.clear()
        elements = count * self.held.share * self.places.fraction
        again = layers in self._sent
        self._sent.add(layers)
        held = 0.0
        if self.places.gradients == "host":
            held = count * self.held.element["gradients"] * (self.held.share if op.action in self._reduced else 1.0)
        copy = Copy(
            name=f"{op.action}.{layers[-1]}.out",
            action=op.action,
            nbytes=elements * self.held.gradient,
            to="host",
            stream=TO_HOST if self.places.overlap else "compute",
            after=(op.name,),
            allocates={"buffers": held} if held and op.action in self._reduced else {},
            frees={"buffers": held} if held else {},
        )
        self._issued.append(copy.name)
        if again and not self.places.full_precision:
            yield from self._added_on_gpu(copy)
        else:
            yield copy
            if again:
                yield self._added_on_host(copy, elements)

    def _added_on_gpu(self, copy: Copy) -> Iterator[Op]:
        """Yield the copy in of what the host has, the addition, and *copy*."""
        stream = TO_GPU if self.places.overlap else "compute"
        more = {"buffers": copy.nbytes}
        back = replace(copy, name=f"{copy.name}.in", to="gpu", source="host", stream=stream, allocates=more, frees={})
        kernels = (memory_bound(3.0 * copy.nbytes, launches=1),)
        after = (*copy.after, back.name)
        total = Compute(name=f"{copy.name}.add", stream=copy.stream, kernels=kernels, after=after)
        frees = added(copy.frees, "buffers", copy.nbytes)
        yield from (back, total, replace(copy, after=(total.name,), frees=frees))

    def _added_on_host(self, copy: Copy, elements: float) -> Copy:
        nbytes = 3.0 * elements * self.held.gradient
        return Copy(
            name=f"{copy.name}.add", nbytes=nbytes, to="host", source="host", stream=ON_HOST, after=(copy.name,)
        )


def _reduces(op: Op) -> bool:
    return BUCKET in op.name and op.action is not None and isinstance(op, Collective | Compute)


def with_fetches(program: Program, held: HeldStates, places: Places, degrees: Mapping[str, int]) -> Program:
    """Return *program* with the copies of its parameters.

    *degrees*: the number of shards by each axis over which parameters are gathered.
    """
    if not any(_gathers(op, degrees) for op in program.distinct()):
        # without shards each replica has all layers on its host
        return _with_whole_fetched(program, held, places, {})
    return _with_whole_fetched(_with_shards_fetched(program, held, places, degrees), held, places, degrees)


def _with_whole_fetched(program: Program, held: HeldStates, places: Places, degrees: Mapping[str, int]) -> Program:
    """Return *program* with the copies of tensors without shards: all of a single rank, or experts of this rank."""
    weights = (one for own in held.stages.values() for one in own)
    layers = {one.name: Weights(one.name, tuple(t for t in one.tensors if _whole(t, degrees))) for one in weights}
    if not any(one.parameters for one in layers.values()):
        return program
    wide = held.widening()

    def fetched(gather: Collective) -> Iterator[Op]:
        yield from _copies(gather, gather.nbytes * wide, places, gather.after, gather.after, {"buffers": gather.nbytes})

    width = BYTES[held.precision]
    return unsharded(program, layers, width, "", overlap=places.overlap, suffix=" whole", made=fetched)


def _whole(tensor: ParameterTensor, degrees: Mapping[str, int]) -> bool:
    return tensor.reduced_over[-1] not in degrees


def _with_shards_fetched(program: Program, held: HeldStates, places: Places, degrees: Mapping[str, int]) -> Program:
    wide = held.widening()
    before: list[tuple[str, ...]] = [(BEGIN,), (BEGIN,)]
    ops: list[Op] = []
    for op in program.ops:
        if isinstance(op, Collective) and _gathers(op, degrees):
            nbytes = op.nbytes / degrees[op.over] * wide
            name = f"{op.name}.fetch"
            ops += _copies(replace(op, name=name), nbytes, places, before[-1], before[-2], {"buffers": nbytes})
            before.append(op.after or (BEGIN,))
            ops.append(replace(op, after=(*op.after, name), frees=added(op.frees, "buffers", nbytes)))
        else:
            ops.append(op)
    return replace(program, ops=tuple(ops))


def _gathers(op: Op, degrees: Mapping[str, int]) -> bool:
    return isinstance(op, Collective) and op.kind == "all_gather" and op.over in degrees and ".gather" in op.name


def _copies(
    gather: Collective,
    nbytes: float,
    places: Places,
    after: tuple[str, ...],
    read_after: tuple[str, ...],
    allocates: Mapping[str, float],
) -> Iterator[Copy]:
    """Yield the copy of *nbytes* to the GPU in place of *gather*, behind the ops *after*, and the read from a drive."""
    blocks = gather.stream == "compute"
    read = ""
    if places.parameters == "nvme":
        read = f"{gather.name}.read"
        stream, buffer = "compute" if blocks else READ, {"host.buffers": nbytes}
        yield Copy(
            name=read,
            action=gather.action,
            nbytes=nbytes,
            to="host",
            source="nvme",
            stream=stream,
            after=read_after,
            allocates=buffer,
        )
    yield Copy(
        name=gather.name,
        action=gather.action,
        nbytes=nbytes,
        to="gpu",
        stream="compute" if blocks else TO_GPU,
        after=(*after, read) if read else after,
        allocates=allocates,
        frees={"host.buffers": nbytes} if read else {},
    )
