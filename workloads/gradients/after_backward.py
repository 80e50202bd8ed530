"""Reductions that follow the backward pass, where no hooks run within it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.schedule import Op, Program
from workloads.gradients.bucket import Bucket, Reduction
from workloads.gradients.compressed import wrapped
from workloads.gradients.reduce import actions, backward_ops, updated_stages


def after_backward(program: Program, parts: Mapping[int, Sequence[Bucket]]) -> dict[int, list[Bucket]]:
    """*parts*, by stage, all complete only at the end of the last backward pass before their optimizer step."""
    last = {action.stage: layer for action, layer in backward_ops(program)}
    if len(set(updated_stages(program).values())) > 1:
        return {stage: [replace(part, layer=last[stage]) for part in own] for stage, own in parts.items()}
    end = list(actions(program, "BW"))[-1][1].stage
    every = [replace(part, layer=last[end]) for own in parts.values() for part in own]
    return {stage: every if stage == end else [] for stage in parts}


def flattened(reduction: Reduction) -> Reduction:
    """*reduction*, each bucket copied to a flat buffer just for it."""

    def reduce(bucket: Bucket) -> Iterator[Op]:
        ops = list(reduction(bucket))
        held = ops[0].allocates.get("buffers", 0.0) + bucket.buffer
        yield replace(ops[0], allocates={**ops[0].allocates, "buffers": held}) if bucket.buffer else ops[0]
        yield from ops[1:]

    return wrapped(reduction, reduce)
