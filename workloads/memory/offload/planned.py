"""Activations are copied to the host and back as the sequences of the stages say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from simulator.schedule import Program, Schedule
from workloads.memory.chains.sequence import ACTIVATION, Kind, Operation
from workloads.memory.chains.sequence import Sequence as ChainSequence
from workloads.memory.offload.layer_passes import LayerPass, Run, layer_runs
from workloads.memory.offload.transfers import Transfer, with_transfers
from workloads.memory.recompute import stage_layers


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
                for transfer in _transfers(sequences[stage], (stage, micro_batch), names[stage], runs)
            ),
        )

    return schedule.map_programs(changed)


def _transfers(
    sequence: ChainSequence, of: tuple[int, int | None], names: Sequence[str], runs: Mapping[Run, LayerPass]
) -> Iterator[Transfer]:
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
            yield Transfer(
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


def _as(transfer: Operation, kind: Kind) -> Operation:
    return Operation(kind, transfer.layer, transfer.tensor)
