"""Gradients leave the GPU as soon as they are complete: after their reduction, or after the backward pass of a layer.

With gradients on the host this happens in every micro-batch, since the GPU keeps none. DeepSpeed adds them up on the
GPU: what the host has so far is copied in, and the sum out (runtime/zero/stage_1_and_2.py,
``async_accumulate_grad_in_cpu_via_gpu``; stage3.py, ``partition_grads``). FSDP adds them up on the host. With gradients
on the GPU they leave it once, when those of all micro-batches are added up.

Unsent gradients are at most those of two copies: computation waits for the copy before the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from simulator.kernel import memory_bound
from simulator.schedule import Collective, Compute, Copy, Op, Program
from simulator.schedule.order import Action
from simulator.schedule.program import Block, TemplatedOps
from workloads.gradients.reduce import backward_ops, final_backwards, updated_stages
from workloads.memory.offload.places import ON_HOST, TO_GPU, TO_HOST, Held, Places
from workloads.sharding.states import added

BUCKET = ".bucket"
"""Part of the name of every op that reduces a bucket (`workloads.gradients.reduce`)."""


def with_gradient_copies(program: Program, held: Held, places: Places) -> tuple[Program, dict[str, str]]:
    """Return *program* with the copies of its gradients, and for each update the name of the last copy before it."""
    writer = _Writer(program, held, places)
    return writer.written(), writer.last_copy


@dataclass
class _Writer:
    """Writes the ops of *program* with copies. *last_copy*: by update, the name of the last copy before it."""

    program: Program
    held: Held
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
                blocks.append(Block(ops, block.micro_batch))
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
