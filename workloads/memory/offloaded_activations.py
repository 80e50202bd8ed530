"""Activations in the memory of the host between their passes: of chosen layers, or as sequences of stages say.

As soon as the forward pass of a layer ends, a copy to pinned host memory begins on a stream of its own. The memory of
the GPU is free when the copy ends. A layer's forward pass waits until at most *outstanding* copies of earlier layers
are under way: otherwise the GPU would hold all that has not been copied. The copy back begins on another stream,
*ahead* layer passes before the backward pass of the layer begins. With 1 and 1 these are the double buffers of
Transformer Engine (pytorch/cpu_offload.py) and of vDNN (Rhu et al. 2016, arXiv:1602.08124, section 3). A recomputed
layer keeps only its input, so that is what is copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.lookup import nearest
from clustersim.simulator.schedule.ops import Compute, Copy, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.memory.activations import Place
from clustersim.workloads.memory.chain_sequence import ACTIVATION, ChainOperation, ChainSequence, Kind
from clustersim.workloads.memory.recompute import RUN, stage_layers
from clustersim.workloads.operators.model import Model

ACTIVATIONS = "activations"


@dataclass(frozen=True, slots=True)
class CopyBuffers:
    """How far copies run apart from the computation.

    *outstanding*: copies to the host that may be under way when a forward pass begins. *ahead*: layer passes between
    the begin of a copy back and the backward pass that needs it.
    """

    outstanding: int = 1
    ahead: int = 1


ONE_LAYER_AHEAD = CopyBuffers()


def offloaded(schedule: Schedule, layers: Collection[str], buffers: CopyBuffers = ONE_LAYER_AHEAD) -> Schedule:
    """*schedule* with the activations of *layers* (names) on the host between forward and backward pass.

    Where the backward pass of a layer follows soon, as for the last layers, its activations stay: the copy back would
    begin as soon as the copy to the host ends.
    """
    chosen = frozenset(layers)
    return schedule.map_programs(lambda program: _offloaded(program, chosen, buffers))


def _offloaded(program: Program, layers: Collection[str], buffers: CopyBuffers) -> Program:
    if program.on != "gpu" or not any(op.layer in layers for op in program.distinct()):
        return program
    whole = program.materialise()
    return with_transfers(whole, _transfers(layer_passes(whole.ops), layers, buffers))


def _transfers(
    passes: Sequence[LayerPass], layers: Collection[str], buffers: CopyBuffers
) -> Iterator[ActivationTransfer]:
    """The transfers of the *layers* whose backward pass comes late enough."""
    forwards = [number for number, one in enumerate(passes) if one.forward]
    backward: dict[Place, int] = {}
    for number, one in enumerate(passes):
        if not one.forward:
            backward.setdefault(one.place, number)
    for count, number in enumerate(forwards):
        one = passes[number]
        due = backward.get(one.place, 0)
        trigger = due - 1 - buffers.ahead
        # passes of two actions may alternate
        while trigger > number and passes[trigger].last >= passes[due].first:
            trigger -= 1
        if one.place[2] not in layers or one.kept <= 0.0 or trigger <= number + 1:
            continue
        limit = count + 1 + buffers.outstanding
        awaited_by = passes[forwards[limit]].first if limit < len(forwards) else None
        yield ActivationTransfer(one.place, one.kept, one.last, awaited_by, passes[trigger].last, passes[due].first)


def named_layers(model: Model, wanted: Sequence[str | int]) -> list[str]:
    """The names of the layers *wanted*, each a name or an index in order of the forward pass.

    Raises `ScheduleError` for a layer that *model* does not have, with the nearest names.
    """
    names = [layer.name for layer in model.layers]
    found: list[str] = []
    for one in wanted:
        if isinstance(one, int):
            if not 0 <= one < len(names):
                raise ScheduleError(f"layer {one}: {model.name} has the layers 0 to {len(names) - 1}")
            found.append(names[one])
        elif one in names:
            found.append(one)
        else:
            near = ", ".join(nearest(one, names)[:3])
            raise ScheduleError(f'"{one}" is no layer of {model.name}; the nearest of its {len(names)} are {near}')
    return found


def offloaded_by(schedule: Schedule, sequences: Mapping[int, ChainSequence]) -> Schedule:
    """*schedule*, recomputed by *sequences* (by stage, as in `recompute_by`), with their copies."""
    names = stage_layers(schedule)
    copying = {stage for stage, one in sequences.items() if any(op.kind is Kind.OFFLOAD for op in one)}

    def changed(program: Program) -> Program:
        stages = {op.action.stage for op in program.distinct() if op.action and op.layer}
        if program.on != "gpu" or stages.isdisjoint(copying):
            return program
        whole = program.materialise()
        runs = layer_runs(whole.ops)
        places = sorted({place[:2] for place, _ in runs if place[0] in copying}, key=str)
        return with_transfers(
            whole,
            (
                transfer
                for stage, micro_batch in places
                for transfer in _planned_transfers(sequences[stage], (stage, micro_batch), names[stage], runs)
            ),
        )

    return schedule.map_programs(changed)


def _planned_transfers(
    sequence: ChainSequence, of: tuple[int, int | None], names: Sequence[str], runs: Mapping[Run, LayerPass]
) -> Iterator[ActivationTransfer]:
    """The transfers of *sequence* for the stage and the micro-batch *of*; *names*: the layers of the stage."""
    computed = _computed(sequence, of, names, runs)
    order = list(runs.values())
    operations = list(enumerate(sequence))
    for index, offload in operations:
        if offload.kind is not Kind.OFFLOAD:
            continue
        number = offload.layer + (offload.tensor == ACTIVATION)
        place = (*of, names[number - 1])
        waited = operations[next(n for n, one in operations if one == _as(offload, Kind.WAIT)) :]
        asked = next(n for n, one in operations if one == _as(offload, Kind.PREFETCH))
        before = [computed[n] for n in range(sequence.turn, asked) if n in computed]
        first_backward = next(computed[n] for n, _ in operations[sequence.turn :] if n in computed)
        trigger = before[-1] if before else order[order.index(first_backward) - 1]
        needed = next(computed[n] for n, one in operations[asked:] if n in computed and one.layer == number)
        kept = runs[place, "F"].kept
        if kept > 0.0:
            yield ActivationTransfer(
                place,
                kept,
                made=next(computed[n].last for n in range(index, -1, -1) if n in computed),
                awaited_by=next(computed[n].first for n, _ in waited if n in computed),
                trigger=trigger.last,
                needed_by=needed.first,
            )


def _computed(
    sequence: ChainSequence, of: tuple[int, int | None], names: Sequence[str], runs: Mapping[Run, LayerPass]
) -> dict[int, LayerPass]:
    """The run of each operation of *sequence* that computes, by index."""
    found: dict[int, LayerPass] = {}
    again: Counter[int] = Counter()
    for index, one in enumerate(sequence):
        if one.kind is Kind.TURN or one.kind.is_transfer:
            continue
        run = "F" if index < sequence.turn else "B"
        if one.kind.is_forward and run == "B":
            again[one.layer] += 1
            run = f"R{again[one.layer]}"
        found[index] = runs[(*of, names[one.layer - 1]), run]
    return found


def _as(transfer: ChainOperation, kind: Kind) -> ChainOperation:
    return ChainOperation(kind, transfer.layer, transfer.tensor)


@dataclass(slots=True)
class LayerPass:
    """The forward pass at *place*, or else its backward pass with the recomputation just before it.

    *first* and *last*: the indices of its first and last computation in the program. *kept*: bytes of activations that
    it holds when it ends.
    """

    place: Place
    forward: bool
    first: int
    last: int
    kept: float = 0.0


Run = tuple[Place, str]
"""A place and ``F``, ``B``, or ``R`` with the number of the repetition."""


def layer_runs(ops: Sequence[Op]) -> dict[Run, LayerPass]:
    """The runs of the layers of *ops*, in order of their first computation.

    Phase I counts as B. Phase W is left out: it needs no activation that a copy takes.
    """
    found: dict[Run, LayerPass] = {}
    for index, op in enumerate(ops):
        if not (op.action and op.layer and op.action.phase in "FRBI"):
            continue
        phase, stage, micro_batch = op.action
        run = (op.name.partition(RUN)[2] or "1") if phase == "R" else ""
        key = (stage, micro_batch, op.layer), "B" if phase == "I" else f"{phase}{run}"
        if isinstance(op, Compute):
            found.setdefault(key, LayerPass(key[0], phase == "F", index, index)).last = index
        if key in found:
            found[key].kept += op.allocates.get(ACTIVATIONS, 0.0) - op.frees.get(ACTIVATIONS, 0.0)
    return dict(sorted(found.items(), key=lambda item: item[1].first))


def layer_passes(ops: Sequence[Op]) -> list[LayerPass]:
    """The layer passes of *ops*, in order of their first computation: a recomputation and a B right behind it are one.

    What a layer keeps is that of its forward pass.
    """
    passes: list[LayerPass] = []
    for one in layer_runs(ops).values():
        before = passes[-1] if passes else None
        if before and before.place == one.place and not (before.forward or one.forward):
            before.last = one.last
        else:
            passes.append(one)
    return passes


OFFLOAD, PREFETCH = "offload", "prefetch"
"""The streams of the copies to the host and back, and the ends of their names."""


@dataclass(frozen=True, slots=True)
class ActivationTransfer:
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


def with_transfers(program: Program, transfers: Iterable[ActivationTransfer]) -> Program:
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
            OpBlock(_block(block.ops, start, behind, waits), block.micro_batch)
            for block, start in zip(blocks, starts, strict=False)
        )
    )


def _block(ops: Sequence[Op], start: int, behind: dict[int, list[Copy]], waits: dict[int, list[str]]) -> tuple[Op, ...]:
    made: list[Op] = []
    for index, op in enumerate(ops, start):
        made.append(replace(op, after=(*op.after, *waits[index])) if index in waits else op)
        made += behind.get(index, ())
    return tuple(made)
