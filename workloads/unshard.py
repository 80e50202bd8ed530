"""Sharded parameters are gathered before use: a layer is unsharded, read, and given up again.

A gather runs on a stream of its own, ahead of the computation but at most *prefetch* layers of it, so that what is
gathered at once stays small.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from simulator.kernel import BYTES
from simulator.order import Action
from simulator.schedule import Collective, Compute, Op, Program
from workloads.gradients import Weights, updated_stages, weights_by_stage
from workloads.listed import listed
from workloads.model import Model
from workloads.sharding import added


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be whole at once, in elements, as DeepSpeed limits it (runtime/zero/config.py).

    *reuse* (``stage3_max_reuse_distance``): parameters between whose uses more elements are used are given up; between
    the recomputation of a layer and its backward pass that are, on average, those of the layer. *live*
    (``stage3_max_live_parameters``): while a tensor of as many is there nothing is gathered ahead.
    """

    reuse: float = inf
    live: float = inf


@dataclass(frozen=True, slots=True)
class Listing:
    """Gathers tensor by tensor, those below *persistent* elements not at all, with *seconds* of the host for each."""

    persistent: int
    seconds: float

    def of(self, weights: Weights, width: int) -> tuple[float, ...]:
        """The bytes of the tensors of *weights* that are gathered, all where none is large."""
        large = tuple(float(count * width) for count in weights.tensors if count >= self.persistent)
        return large or (float(weights.parameters * width),)


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


def unshards(
    program: Program, model: Model, *, reshard: bool = True, prefetch: int = 1, limits: Limits = Limits()
) -> list[Unshard]:
    """The gathers that *program* needs, in order of use, if each layer that has parameters is sharded.

    F, R, B and I read the weights, W does not. A layer is given up after B or I and, with *reshard*, after F; after R
    it is kept for the backward pass that follows (torch FSDP: ``_post_forward`` in ``PRE_BACKWARD``), which of an order
    that recomputes a stage as a whole, as Varuna's, keeps the stage. A layer that is still there is not gathered again,
    but after an optimizer step, which changes it. Beyond its *limits* a layer is given up after R too, and not gathered
    ahead.
    """
    made: list[Unshard] = []
    there: dict[str, Unshard] = {}
    updates: dict[int, list[int]] = {}
    stages = updated_stages(program)
    for place, op in enumerate(program.ops):
        for stage in stages.get(op.name, ()):
            updates.setdefault(stage, []).append(place)
    held = _held(program, model)
    for use in _passes(program, held):
        kept = there.pop(use.layer, None)
        own = updates.get(use.action.stage, [])
        if kept is None or bisect_left(own, kept.begin) < bisect_left(own, use.begin):
            kept = use
            made.append(use)
        kept.last = max(kept.last, use.last)
        again = use.action.phase == "R" and held[use.layer].parameters <= limits.reuse
        if again or (use.action.phase == "F" and not reshard):
            there[use.layer] = kept
    for number, unshard in enumerate(made):
        # issued as the layer that is `prefetch` before it comes up, but not ahead of an update
        held_back = _held_back(made, number, held, limits)
        ahead, own = made[max(0, number - (0 if held_back else prefetch))].begin, updates.get(unshard.action.stage, [])
        updated = bisect_left(own, unshard.begin)
        unshard.issue = max(ahead, own[updated - 1] + 1) if updated else ahead
    return made


def _held_back(made: Sequence[Unshard], number: int, held: Mapping[str, Weights], limits: Limits) -> bool:
    """Whether the gather of that number waits for its need: the layer is too large, or only just given up after R."""
    one, before = made[number], made[number - 1]
    recomputed = before.layer == one.layer and before.action.phase == "R"
    return recomputed or max(held[one.layer].tensors) >= limits.live


def _held(program: Program, model: Model) -> dict[str, Weights]:
    """What *program* holds of each layer."""
    return {weights.name: weights for own in weights_by_stage(program, model).values() for weights in own}


def _passes(program: Program, held: Mapping[str, Weights]) -> list[Unshard]:
    """Each pass of a layer that reads its weights, as if it gathered them for itself alone; in order of issue."""
    begins: dict[tuple[Action, str], int] = {}
    found: dict[tuple[Action, str], Unshard] = {}
    for place, op in enumerate(program.ops):
        if not (op.action and op.layer and op.action.phase in "FRBI" and held[op.layer].parameters):
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
    layers = _held(program, model)
    alive: list[Unshard] = []
    most: list[Unshard] = []
    gathers = unshards(program, model, reshard=reshard, prefetch=prefetch)
    for unshard in sorted(gathers, key=lambda one: one.issue):
        alive = [*(one for one in alive if one.last >= unshard.issue), unshard]
        most = max(most, alive, key=lambda those: sum(layers[one.layer].parameters for one in those))
    return tuple(layers[one.layer] for one in most)


def unsharded(
    program: Program,
    model: Model,
    over: str,
    *,
    reshard: bool = True,
    prefetch: int = 1,
    overlap: bool = True,
    limits: Limits = Limits(),
    listing: Listing | None = None,
) -> Program:
    """*program* with its `unshards` as all-gathers over the axis *over*, each in several as *listing* says.

    They stand on the stream ``dp.gather``, or without *overlap* block the computation just before its need. The first
    of a step stands with the computation in any case: it follows the previous step's update, and nothing could run
    beside it. What is gathered is allocated as the gather begins and freed as its last use ends.
    """
    width, held = BYTES[model.precision], _held(program, model)
    nbytes = {name: float(weights.parameters * width) for name, weights in held.items()}
    gathers = unshards(program, model, reshard=reshard, prefetch=prefetch if overlap else 0, limits=limits)
    issued: dict[int, list[Unshard]] = {}
    for one in gathers:
        issued.setdefault(one.issue, []).append(one)
    needed, freed = {one.first: one.name for one in gathers}, {one.last: nbytes[one.layer] for one in gathers}
    computed = ""
    ops: list[Op] = []
    for place, op in enumerate(program.ops):
        for one in issued.get(place, ()):
            gather = _gather(one, over, nbytes[one.layer], computed if overlap else "")
            if listing is None:
                ops.append(gather)
            else:
                ops += listed(gather, listing.of(held[one.layer], width), listing.seconds)
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
