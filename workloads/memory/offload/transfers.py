"""The copies of one layer's activations to the host and back, put into a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from simulator.schedule import Copy, Op, Program
from simulator.schedule.order import Action
from simulator.schedule.program import Block, TemplatedOps
from workloads.memory.offload.layer_passes import ACTIVATIONS, Place

OFFLOAD, PREFETCH = "offload", "prefetch"
"""The streams of the copies to the host and back, and the ends of their names."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """*nbytes* of *place* that are copied to the host and back; ops are indices in the program.

    The copy to the host begins after the op *made*. The op *awaited_by* waits for it; None: no op does. The copy back
    begins after the op *trigger*, and the op *needed_by* waits for it.
    """

    place: Place
    nbytes: float
    made: int
    awaited_by: int | None
    trigger: int
    needed_by: int

    def offload(self, made: str) -> Copy:
        """The copy to the host after the op called *made*. It frees the bytes on the GPU when it ends."""
        name = _name(self.place, "F", OFFLOAD)
        held, freed = {f"host.{ACTIVATIONS}": self.nbytes}, {ACTIVATIONS: self.nbytes}
        return self._copy(name, "F", OFFLOAD, (made,), held, freed)

    def prefetch(self, trigger: str) -> Copy:
        """The copy to the GPU after the op called *trigger*. It frees the bytes on the host when it ends."""
        after = (trigger, _name(self.place, "F", OFFLOAD))
        held, freed = {ACTIVATIONS: self.nbytes}, {f"host.{ACTIVATIONS}": self.nbytes}
        return self._copy(_name(self.place, "B", PREFETCH), "B", PREFETCH, after, held, freed)

    def _copy(
        self,
        name: str,
        phase: str,
        stream: str,
        after: tuple[str, ...],
        held: dict[str, float],
        freed: dict[str, float],
    ) -> Copy:
        stage, micro_batch, layer = self.place
        return Copy(
            name=name,
            action=Action(phase, stage, micro_batch),
            layer=layer,
            stream=stream,
            after=after,
            allocates=held,
            frees=freed,
            nbytes=self.nbytes,
            to="host" if stream == OFFLOAD else "gpu",
        )


def _name(place: Place, phase: str, end: str) -> str:
    stage, micro_batch, layer = place
    return f"{Action(phase, stage, micro_batch)}.{layer} {end}"


def with_transfers(program: Program, transfers: Iterable[Transfer]) -> Program:
    """*program*, which has no placeholders, with the copies of *transfers*."""
    ops = program.ops
    behind: defaultdict[int, list[Copy]] = defaultdict(list)
    waits: defaultdict[int, list[str]] = defaultdict(list)
    ordered = sorted(transfers, key=lambda one: one.made)
    for one in ordered:
        copy = one.offload(ops[one.made].name)
        behind[one.made].append(copy)
        if one.awaited_by is not None:
            waits[one.awaited_by].append(copy.name)
    for one in sorted(ordered, key=lambda one: one.needed_by):
        copy = one.prefetch(ops[one.trigger].name)
        behind[one.trigger].append(copy)
        waits[one.needed_by].append(copy.name)
    blocks = program.templated.blocks
    starts = program.templated.starts.tolist()
    return program.with_templated_ops(
        TemplatedOps(
            Block(_block(block.ops, start, behind, waits), block.micro_batch)
            for block, start in zip(blocks, starts, strict=False)
        )
    )


def _block(ops: Sequence[Op], start: int, behind: dict[int, list[Copy]], waits: dict[int, list[str]]) -> tuple[Op, ...]:
    made: list[Op] = []
    for index, op in enumerate(ops, start):
        made.append(replace(op, after=(*op.after, *waits[index])) if index in waits else op)
        made += behind.get(index, ())
    return tuple(made)
