"""Sharded parameters are gathered before use: a layer is unsharded, read, and given up again.

A gather runs on a stream of its own, ahead of the computation but at most *prefetch* layers of it, so that what is
gathered at once stays small.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from simulator.kernel import BYTES
from simulator.order import Action
from simulator.schedule import Collective, Compute, Op, Program
from workloads.gradients import Weights, updated_stages, weights_by_stage
from workloads.model import Model
from workloads.sharding import added


@dataclass(slots=True)
class Unshard:
    """A gather of *layer*, first wanted by *action*, and the stretch of the program in which the layer is whole.

    Places in the program: the gather is issued before the op at *issue*; the first pass that reads the weights begins
    at *begin*, its first Compute is at *first*; the Compute at *last* is through with them.
    """

    action: Action
    layer: str
    begin: int
    first: int
    last: int
    issue: int = 0

    @property
    def name(self) -> str:
        """The name of its op."""
        return f"{self.action}.{self.layer}.gather"


def unshards(program: Program, model: Model, *, reshard: bool = True, prefetch: int = 1) -> list[Unshard]:
    """The gathers that *program* needs, in order of use, if each layer that has parameters is sharded.

    F, R, B and I read the weights, W does not. A layer is given up after B or I and, with *reshard*, after F; after R
    it is kept for the backward pass that follows (torch FSDP: ``_post_forward`` in ``PRE_BACKWARD``), which of an order
    that recomputes a stage as a whole, as Varuna's, keeps the stage. A layer that is still there is not gathered again,
    but after an optimizer step, which changes it.
    """
    made: list[Unshard] = []
    there: dict[str, Unshard] = {}
    updates: dict[int, list[int]] = {}
    stages = updated_stages(program)
    for place, op in enumerate(program.ops):
        for stage in stages.get(op.name, ()):
            updates.setdefault(stage, []).append(place)
    for use in _passes(program, model):
        kept = there.pop(use.layer, None)
        own = updates.get(use.action.stage, [])
        if kept is None or bisect_left(own, kept.begin) < bisect_left(own, use.begin):
            kept = use
            made.append(use)
        kept.last = max(kept.last, use.last)
        if use.action.phase == "R" or (use.action.phase == "F" and not reshard):
            there[use.layer] = kept
    for number, unshard in enumerate(made):
        # issued as the layer that is `prefetch` before it comes up, but not ahead of an update
        ahead, own = made[max(0, number - prefetch)].begin, updates.get(unshard.action.stage, [])
        updated = bisect_left(own, unshard.begin)
        unshard.issue = max(ahead, own[updated - 1] + 1) if updated else ahead
    return made


def _passes(program: Program, model: Model) -> list[Unshard]:
    """Each pass of a layer that reads its weights, as if it gathered them for itself alone; in order of issue."""
    sizes = {weights.name: weights.parameters for own in weights_by_stage(program, model).values() for weights in own}
    begins: dict[tuple[Action, str], int] = {}
    found: dict[tuple[Action, str], Unshard] = {}
    for place, op in enumerate(program.ops):
        if not (op.action and op.layer and op.action.phase in "FRBI" and sizes.get(op.layer)):
            continue
        key = op.action, op.layer
        begins.setdefault(key, place)
        if isinstance(op, Compute):
            found.setdefault(key, Unshard(*key, begins[key], place, place)).last = place
    return sorted(found.values(), key=lambda one: one.begin)


def gathered_at_most(program: Program, model: Model, *, reshard: bool = True, prefetch: int = 1) -> tuple[Weights, ...]:
    """The layers whose parameters *program* has gathered at once when it has most, each as often as it is there.

    Of several such moments the first. Takes a program before or after its gathers are woven in.
    """
    layers = {weights.name: weights for own in weights_by_stage(program, model).values() for weights in own}
    alive: list[Unshard] = []
    most: list[Unshard] = []
    gathers = unshards(program, model, reshard=reshard, prefetch=prefetch)
    for unshard in sorted(gathers, key=lambda one: one.issue):
        alive = [*(one for one in alive if one.last >= unshard.issue), unshard]
        most = max(most, alive, key=lambda those: sum(layers[one.layer].parameters for one in those))
    return tuple(layers[one.layer] for one in most)


def unsharded(
    program: Program, model: Model, over: str, *, reshard: bool = True, prefetch: int = 1, overlap: bool = True
) -> Program:
    """*program* with its `unshards` as all-gathers over the axis *over*.

    They stand on the stream ``dp.gather``, or without *overlap* block the computation just before its need. The first
    of a step stands with the computation in any case: it follows the previous step's update, and nothing could run
    beside it. What is gathered is allocated as the gather begins and freed as its last use ends.
    """
    width, stages = BYTES[model.precision], weights_by_stage(program, model)
    nbytes = {weights.name: float(weights.parameters * width) for own in stages.values() for weights in own}
    gathers = unshards(program, model, reshard=reshard, prefetch=prefetch if overlap else 0)
    issued: dict[int, list[Unshard]] = {}
    for one in gathers:
        issued.setdefault(one.issue, []).append(one)
    needed, freed = {one.first: one.name for one in gathers}, {one.last: nbytes[one.layer] for one in gathers}
    computed = ""
    ops: list[Op] = []
    for place, op in enumerate(program.ops):
        for one in issued.get(place, ()):
            ops.append(_gather(one, over, nbytes[one.layer], computed if overlap else ""))
            computed = computed or one.name
        new = replace(op, after=(*op.after, needed[place])) if place in needed else op
        ops.append(replace(new, frees=added(new.frees, "buffers", freed[place])) if place in freed else new)
        computed = op.name if op.stream == "compute" else computed
    return replace(program, ops=tuple(ops))


def _gather(unshard: Unshard, over: str, nbytes: float, after: str) -> Collective:
    return Collective(
        name=unshard.name,
        action=unshard.action,
        kind="all_gather",
        over=over,
        nbytes=nbytes,
        stream="dp.gather" if after else "compute",
        after=(after,) if after else (),
        allocates={"buffers": nbytes},
    )
