"""Gradients are summed over replicas in buckets, each as soon as the backward pass has gone through its last layer.

What the passes of data parallelism share: which layers a program holds, which ops complete their gradients, and how a
collective is hung on them. Each stage of a program fills buckets of its own, as Megatron-LM wraps each model chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ScheduleError
from simulator.order import Action
from simulator.schedule import Collective, Compute, Op, Program
from workloads.model import Layer, Model


@dataclass(frozen=True, slots=True)
class Bucket:
    """*nbytes* of gradients, complete when the backward pass has gone through *layer*, the last of its layers."""

    nbytes: float
    layer: str


Reduction = Callable[[str, Action, Bucket, str], Iterable[Collective]]
"""(name, action, bucket, op that completes it) -> the collectives that reduce it, one after the other."""


def layers_by_stage(program: Program, model: Model) -> dict[int, list[Layer]]:
    """The layers of each stage of *program* in order of the forward pass.

    Raises `ScheduleError` for a layer that *model* has not.
    """
    layers = {layer.name: layer for layer in model.layers}
    found: dict[int, dict[str, Layer]] = {}
    for op in program.ops:
        if op.action and op.action.phase == "F" and op.layer:
            if op.layer not in layers:
                raise ScheduleError(f"{program.role}, {op.name}: {model.name} has no layer {op.layer}")
            found.setdefault(op.action.stage, {})[op.layer] = layers[op.layer]
    return {stage: list(named.values()) for stage, named in found.items()}


def reduce_gradients(
    program: Program, buckets: Mapping[int, Sequence[Bucket]], reduction: Reduction, *, every: bool = False
) -> Program:
    """*program* with a *reduction* of each of its *buckets*, by stage, hung on the op that completes the bucket.

    In the backward pass of the last micro-batch before an optimizer step, or with *every* in each. The optimizer waits
    for all of them.
    """
    final = None if every else final_backwards(program)
    completing = {names[-1] for place, names in backward_ops(program).items() if final is None or place[0] in final}
    # a stream is an order of issue: who waits for its last op has waited for all
    pending: dict[str, str] = {}

    def change(op: Op) -> Iterator[Op]:
        if op.action and op.action.phase == "O":
            yield replace(op, after=(*op.after, *pending.values()))
            pending.clear()
            return
        yield op
        if op.action and op.name in completing:
            for number, bucket in enumerate(buckets[op.action.stage]):
                if bucket.layer == op.layer:
                    for reduced in reduction(f"{op.action}.bucket{number}", op.action, bucket, op.name):
                        yield reduced
                        pending[reduced.stream] = reduced.name

    return program.weave(change)


def backward_ops(program: Program) -> dict[tuple[Action, str], list[str]]:
    """The Computes that make the weight gradients, phases B and W, by action and layer, in order of issue."""
    found: dict[tuple[Action, str], list[str]] = {}
    for op in program.ops:
        if isinstance(op, Compute) and op.action and op.layer and op.action.phase in "BW":
            found.setdefault((op.action, op.layer), []).append(op.name)
    return found


def final_backwards(program: Program) -> set[Action]:
    """The B or W of each stage after which its gradients are complete: the last before each optimizer step."""
    last: dict[int, Action] = {}
    final: set[Action] = set()
    for op in program.ops:
        if op.action and op.action.phase == "O":
            final.update(last.values())
            last = {}
        elif isinstance(op, Compute) and op.action and op.action.phase in "BW":
            last[op.action.stage] = op.action
    return final | set(last.values())
