"""Recomputation runs part of the forward pass again, before the backward pass, instead of keeping its results.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174). *selective*: core attention only;
its activations are large and cheap to compute (Korthikanti et al. 2022, arXiv:2205.05198, section 5). *operators*: what
the rule of the model says (`workloads.architectures.layer_parts`). Otherwise each stage has a sequence that says
which layers run again before which backward pass: a fixed one (`workloads.memory.chain_sequence`) or an optimal
one (`workloads.memory.optimal_checkpointing`). Non-reentrant checkpoints of torch 2.1 and later stop early, as
soon as all tensors that the backward pass needs are there (torch.utils.checkpoint, ``set_checkpoint_early_stop``): the
last product of a transformer layer does not run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.lookup import nearest
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.memory.activations import with_activations
from clustersim.workloads.memory.chain_sequence import FIXED, ChainSequence, Kind, fixed_sequence
from clustersim.workloads.operators.lowering import lowered_segments
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.stages import ENDS

CHOICES = ("none", "selective", "operators", *FIXED)
"""How much is recomputed, where that follows from the layers alone."""

RUN = " run "
"""In the name of an op of a layer that runs again more than once, before the number of the run."""


def recompute(
    schedule: Schedule,
    model: Model,
    how: str,
    *,
    micro_batch_size: int,
    num_layers: int = 1,
    early_stop: bool = False,
) -> Schedule:
    """*schedule* with an R of layers before their B or I; *how* is one of `CHOICES`.

    *num_layers*: of a group or a block. With *early_stop* an R of a whole layer ends where its backward pass has what
    it needs. *model* has its layers as one rank holds them. R waits for no gradient: it begins when it is the head of
    its stream, as in GPipe. Raises `ScheduleError` if the order recomputes by itself.
    """
    if how not in CHOICES:
        raise ScheduleError(f'unknown recomputation "{how}"; there are: {", ".join(nearest(how, [*CHOICES]))}')
    if how == "none":
        return schedule
    if how in ("selective", "operators"):
        check_not_recomputed(schedule, f"recompute = {how}")
        layers = {layer.name: layer for layer in model.layers if layer.kind not in ENDS}
        return _with(schedule, model, micro_batch_size, lambda part: _attention_again(part, layers, micro_batch_size))
    repeatable = {layer.name: layer.kind not in ENDS for layer in model.layers}
    sequences = {
        stage: fixed_sequence(how, [repeatable[name] for name in names], num_layers)
        for stage, names in stage_layers(schedule).items()
    }
    return recompute_by(schedule, model, sequences, micro_batch_size=micro_batch_size, early_stop=early_stop, how=how)


def recompute_by(
    schedule: Schedule,
    model: Model,
    sequences: Mapping[int, ChainSequence],
    *,
    micro_batch_size: int,
    early_stop: bool = False,
    how: str = "optimal",
) -> Schedule:
    """*schedule* in which each stage runs its layers by one of *sequences*; the other arguments as in `recompute`.

    Layer l of a sequence is layer l of the stage.
    """
    check_not_recomputed(schedule, f"recompute = {how}")
    plans = {stage: _runs_again(sequences[stage], names) for stage, names in stage_layers(schedule).items()}
    unneeded = {layer.name: layer.unneeded_forward(micro_batch_size) if early_stop else 0 for layer in model.layers}
    return _with(schedule, model, micro_batch_size, lambda part: _layers_again(part, plans, unneeded))


def check_not_recomputed(schedule: Schedule, what: str) -> None:
    """Raise `ScheduleError` if the order of *schedule* recomputes by itself, so that *what* cannot do it."""
    for program in schedule.programs:
        if any(op.action and op.action.phase == "R" for op in program.distinct()):
            raise ScheduleError(f"{program.role} recomputes in its order already; {what} would do it twice, try none")


def stage_layers(schedule: Schedule) -> dict[int, list[str]]:
    """The names of the layers of each stage, in order of the forward pass."""
    found: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for program in schedule.programs:
        for op in program.distinct():
            if op.action and op.layer and op.action.phase == "F":
                found[op.action.stage][op.layer] = None
    return {stage: list(names) for stage, names in sorted(found.items())}


def _with(schedule: Schedule, model: Model, samples: int, change: Callable[[Program], Program]) -> Schedule:
    """*schedule* with the programs of each micro-batch changed, and with their activations."""
    return schedule.map_programs(lambda program: with_activations(program.by_micro_batch(change), model, samples))


def _runs_again(sequence: ChainSequence, names: Sequence[str]) -> dict[str, list[str]]:
    """By layer, the layers that *sequence* runs again right before its backward pass, in order."""
    found: dict[str, list[str]] = {}
    waiting: list[str] = []
    for operation in sequence.operations[sequence.turn + 1 :]:
        if operation.kind is Kind.BACKWARD:
            found[names[operation.layer - 1]] = waiting
            waiting = []
        elif operation.kind.is_forward:
            waiting.append(names[operation.layer - 1])
    return found


def _attention_again(program: Program, layers: Mapping[str, Layer], samples: int) -> Program:
    """*program* with the part of each layer that selective recomputation runs again."""
    seen: set[tuple[Action, str]] = set()

    def change(op: Op) -> Iterator[Op]:
        if op.action and op.layer and op.layer in layers and op.action.phase in "BI":
            place = op.action._replace(phase="R"), op.layer
            # only the first of several ops of a backward pass
            if place not in seen and layers[op.layer].recomputable_forward(samples):
                yield from lowered_segments(*place, layers[op.layer].recomputable_segments(samples), {})
            seen.add(place)
        yield op

    return program.map_ops(change)


def _layers_again(
    program: Program, plans: Mapping[int, Mapping[str, Sequence[str]]], unneeded: Mapping[str, int]
) -> Program:
    """*program* with the layers of *plans*, by stage, run again; the last of them without its *unneeded* kernels."""
    forwards: defaultdict[tuple[Action, str], list[Op]] = defaultdict(list)
    for op in program.ops:
        if op.action and op.layer and op.action.phase == "F":
            forwards[op.action, op.layer].append(op)
    done: set[tuple[Action, str]] = set()
    runs: Counter[tuple[Action, str]] = Counter()

    def change(op: Op) -> Iterator[Op]:
        if op.action and op.layer and op.action.phase in "BI" and (op.action, op.layer) not in done:
            done.add((op.action, op.layer))
            names = plans[op.action.stage].get(op.layer, ())
            for place, name in enumerate(names, 1):
                key = op.action._replace(phase="F"), name
                runs[key] += 1
                left_out = unneeded[name] if place == len(names) else 0
                yield from _again(without_last(forwards[key], left_out), runs[key])
        yield op

    return program.map_ops(change)


def _again(forward: Sequence[Op], run: int) -> Iterator[Op]:
    """The ops of a layer's forward pass, exchanges included, once more; they wait for one another only.

    *run* counts the repetitions of the layer; from the second on the names say it.
    """
    renamed = {op.name: _in_r(op.name, op.action, run) for op in forward if op.action}
    for op in forward:
        if op.action:
            after = tuple(renamed[name] for name in op.after if name in renamed)
            yield replace(op, name=renamed[op.name], action=op.action._replace(phase="R"), after=after)


def without_last(forward: Sequence[Op], kernels: int) -> list[Op]:
    """The ops of *forward* without the last so many *kernels*, and without the exchanges of their results.

    A computation that is left without kernels stays, for those that wait for it by its name.
    """
    kept: list[Op] = []
    for op in reversed(forward):
        cut = min(kernels, len(op.kernels)) if isinstance(op, Compute) else 0
        if isinstance(op, Compute):
            kernels -= cut
            kept.append(replace(op, kernels=op.kernels[: len(op.kernels) - cut]) if cut else op)
        elif not kernels or op.allocates:
            kept.append(op)
    names = {op.name for op in kept}
    return [replace(op, after=tuple(name for name in op.after if name in names)) for op in reversed(kept)]


def _in_r(name: str, action: Action, run: int) -> str:
    again = str(action._replace(phase="R")) + name.removeprefix(str(action))
    return again if run == 1 else f"{again}{RUN}{run}"
