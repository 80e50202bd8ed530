"""Gradients are summed over replicas in buckets, each as soon as the backward pass has gone through its last layer.

What the passes of data parallelism share: which layers a program holds, which ops complete their gradients, and how a
collective is hung on them. Each stage of a program fills buckets of its own, as Megatron-LM wraps each model chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ScheduleError
from simulator.order import PLACEHOLDER, Action
from simulator.schedule import Compute, Op, Program
from workloads.model import Model


@dataclass(frozen=True, slots=True)
class Bucket:
    """*nbytes* of gradients, complete when the backward pass has gone through *layer*, the last of its layers.

    *tensors*: the bytes of each in it, where they matter.
    """

    nbytes: float
    layer: str
    tensors: tuple[float, ...] = ()


Reduction = Callable[[str, Action, Bucket, str], Iterable[Op]]
"""(name, action, bucket, op that completes it) -> the collectives that reduce it, one after the other, and what the
host does for them."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a program holds of the layer *name*: *tensors*, by element counts, in order of registration."""

    name: str
    tensors: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many parameters they have."""
        return sum(self.tensors)


def weights_by_stage(program: Program, model: Model) -> dict[int, list[Weights]]:
    """The weights of each stage of *program* in order of the forward pass.

    Where the first and the last layer share parameters and the program has the last one alone, it holds a copy, whose
    gradients are summed over replicas like all others. Raises `ScheduleError` for a layer that *model* has not.
    """
    layers = {layer.name: layer for layer in model.layers}
    found: dict[int, dict[str, Weights]] = {}
    first, last = model.layers[0].name, model.layers[-1].name
    copied = model.tied_parameters if all(op.layer != first for op in program.distinct()) else 0
    for op in program.distinct():
        if not (op.action and op.action.phase == "F" and op.layer) or op.layer in found.get(op.action.stage, ()):
            continue
        if op.layer not in layers:
            raise ScheduleError(f"{program.role}: {model.name} has no layer {op.layer}")
        copy = (copied,) if copied and op.layer == last else ()
        found.setdefault(op.action.stage, {})[op.layer] = Weights(op.layer, (*layers[op.layer].tensors, *copy))
    return {stage: list(named.values()) for stage, named in found.items()}


def reduce_gradients(
    program: Program, buckets: Mapping[int, Sequence[Bucket]], reduction: Reduction, *, every: bool = False
) -> Program:
    """*program* with a *reduction* of each of its *buckets*, by stage, hung on the op that completes the bucket.

    In the backward pass of the last micro-batch before an optimizer step, or with *every* in each. The optimizer waits
    for those of the stages that it updates.
    """
    updates = updated_stages(program)
    final = None if every else _final_backwards(program, updates)
    program = program.materialise(None if final is None else {action.micro_batch for action in final})
    completing = {names[-1] for place, names in backward_ops(program).items() if final is None or place[0] in final}
    # a stream is an order of issue: who waits for its last op has waited for all
    pending: dict[tuple[int, str], str] = {}

    def change(op: Op) -> Iterator[Op]:
        if op.name in updates:
            awaited = [key for key in pending if key[0] in updates[op.name]]
            yield replace(op, after=(*op.after, *dict.fromkeys(pending.pop(key) for key in awaited)))
            return
        yield op
        if op.action and op.name in completing:
            for number, bucket in enumerate(buckets[op.action.stage]):
                if bucket.layer == op.layer:
                    for reduced in reduction(f"{op.action}.bucket{number}", op.action, bucket, op.name):
                        yield reduced
                        pending[op.action.stage, reduced.stream] = reduced.name

    return program.map_ops(change)


def updated_stages(program: Program) -> dict[str, frozenset[int]]:
    """The stages whose parameters each optimizer step updates, by its op's name, in order of issue.

    Its own, and those that have no step of their own: one step at the end is for all stages of its rank.
    """
    stages = {op.action.stage for op in program.distinct() if op.action and op.action.phase == "F"}
    steps = (op for op in program.distinct() if isinstance(op, Compute))
    updates = {op.name: op.action.stage for op in steps if op.action and op.action.phase == "O"}
    shared = stages - set(updates.values())
    return {name: frozenset({stage, *shared}) for name, stage in updates.items()}


def _final_backwards(program: Program, updates: Mapping[str, frozenset[int]]) -> set[Action]:
    """The B or W of each stage after which its gradients are complete: the last before each optimizer step."""
    last: dict[int, Action] = {}
    final: set[Action] = set()
    for _, action in actions(program, "BWO"):
        if action.phase != "O":
            last[action.stage] = action
        else:
            final.update(last.pop(stage) for stage in updates[str(action)] & set(last))
    return final | set(last.values())


def actions(program: Program, phases: str) -> Iterator[tuple[int, Action]]:
    """The actions of *phases* that *program* computes, in order of issue, each with the number of its block."""
    ops = program.templated
    of = [_actions(template, phases) for template in ops.templates]
    for number, (template, stamp) in enumerate(zip(ops.which.tolist(), ops.micro_batches.tolist(), strict=True)):
        for phase, stage, micro_batch in of[template]:
            yield number, Action(phase, stage, stamp if micro_batch == PLACEHOLDER else micro_batch)


def _actions(ops: Sequence[Op], phases: str) -> list[Action]:
    return list(
        dict.fromkeys(op.action for op in ops if isinstance(op, Compute) and op.action and op.action.phase in phases)
    )


def backward_ops(program: Program) -> dict[tuple[Action, str], list[str]]:
    """The Computes that make the weight gradients, phases B and W, by action and layer, in order of first use.

    Of blocks that are not written out it tells the templates.
    """
    found: dict[tuple[Action, str], list[str]] = {}
    for op in program.distinct():
        if isinstance(op, Compute) and op.action and op.layer and op.action.phase in "BW":
            found.setdefault((op.action, op.layer), []).append(op.name)
    return found
