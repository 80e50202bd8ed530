"""The layer passes of a program: each forward or backward pass of one layer over one micro-batch, in order of issue."""

from __future__ import annotations

from collections.abc import Sequence
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
