"""The layer passes of a program: each forward or backward pass of one layer over one micro-batch, in order of issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.schedule import Compute, Op
from workloads.memory.recompute import RUN

ACTIVATIONS = "activations"

Place = tuple[int, int | None, str]
"""(stage, micro-batch, layer)."""


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


def layer_passes(ops: Sequence[Op]) -> list[LayerPass]:
    """The layer passes of *ops*, in order of their first computation. Phase W is left out: it needs no activation."""
    found: dict[tuple[Place, str], LayerPass] = {}
    for index, op in enumerate(ops):
        if not (op.action and op.layer and op.action.phase in "FRBI"):
            continue
        phase, stage, micro_batch = op.action
        run = op.name.partition(RUN)[2] if phase == "R" else ""
        key = (stage, micro_batch, op.layer), f"{phase}{run}"
        if isinstance(op, Compute):
            found.setdefault(key, LayerPass(key[0], phase == "F", index, index)).last = index
        if key in found:
            found[key].kept += op.allocates.get(ACTIVATIONS, 0.0) - op.frees.get(ACTIVATIONS, 0.0)
    return list(_merged(sorted(found.values(), key=lambda one: one.first)))


def _merged(passes: Sequence[LayerPass]) -> Iterator[LayerPass]:
    """*passes*, a recomputation and the backward pass right behind it as one."""
    waiting: LayerPass | None = None
    for one in passes:
        if waiting and waiting.place == one.place and not (waiting.forward or one.forward):
            waiting.last = one.last
            continue
        if waiting:
            yield waiting
        waiting = one
    if waiting:
        yield waiting
