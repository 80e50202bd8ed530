"""Sharded parameters are gathered before use and released after it.

A gather runs on a stream of its own, ahead of the computation, but at most *prefetch* layers ahead, so that few layers
are gathered at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from simulator.schedule import Collective, Compute, Op, Program
from simulator.schedule.order import Action
from workloads.gradients.bucket import Weights
from workloads.gradients.per_tensor import per_tensor
from workloads.gradients.reduce import updated_stages
from workloads.memory.sharding import added


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on gathered parameters, in elements, as DeepSpeed has them (runtime/zero/config.py).

    *reuse* (``stage3_max_reuse_distance``): release a layer if more elements are used before its reuse. Between the
    recomputation of a layer and its backward pass these are, on average, the elements of the layer itself. *live*
    (``stage3_max_live_parameters``): gather nothing ahead while a tensor of this size is gathered.
    """

    reuse: float = inf
    live: float = inf


@dataclass(frozen=True, slots=True)
class PerTensor:
    """Gather tensor by tensor, with *seconds* of the host for each; tensors below *persistent* elements stay whole."""

    persistent: int
    seconds: float

    def sizes(self, weights: Weights, width: int) -> tuple[float, ...]:
        """Bytes of the tensors of *weights* that are gathered; all together if none is large enough."""
        large = tuple(tensor.gathered(width) for tensor in weights.tensors if tensor.count >= self.persistent)
        return large or (weights.gathered(width),)


@dataclass(slots=True)
class Gather:
    """A gather of *layer*, first needed by *action*.

    Indices of ops in the program: the gather is issued before *issue*. The first pass that reads the weights begins at
    *begin*; its first Compute is *first*. The last Compute that reads them is *last*. *run* counts the recomputations
    of the layer before one backward pass.
    """

    action: Action
    layer: str
    begin: int
    first: int
    last: int
    issue: int = 0
    run: int = 1

    @property
    def name(self) -> str:
        """The name of its op."""
        return f"{self.action}.{self.layer}.gather" + (f" run {self.run}" if self.run > 1 else "")


def gathers(
    program: Program,
    held: Mapping[str, Weights],
    *,
    reshard: bool = True,
    prefetch: int = 1,
    limits: Limits = Limits(),
) -> list[Gather]:
    """The gathers that *program* needs if the weights *held* (by layer) are sharded, in order of use.

    F, R, B and I read the weights, W does not. A layer is released after B or I and, with *reshard*, after F. After R
    it is kept for the backward pass that follows (torch FSDP: ``_post_forward`` in ``PRE_BACKWARD``); an order that
    recomputes a whole stage, such as Varuna's, so keeps the stage. A layer that is still gathered is not gathered
    again, unless an optimizer step has changed it. A layer beyond *limits* is released after R too, and not gathered
    ahead.
    """
    found: list[Gather] = []
    kept: dict[str, Gather] = {}
    updates = _updates(program)
    for use in _uses(program, held):
        gather, own = kept.pop(use.layer, None), updates.get(use.action.stage, [])
        if gather is None or bisect_left(own, gather.begin) < bisect_left(own, use.begin):
            gather = use
            found.append(use)
        gather.last = max(gather.last, use.last)
        recomputed = use.action.phase == "R" and held[use.layer].parameters <= limits.reuse
        if recomputed or (use.action.phase == "F" and not reshard):
            kept[use.layer] = gather
    for number, gather in enumerate(found):
        # issued when the layer that is `prefetch` before it begins, but not before an update of its weights
        ahead = 0 if _not_ahead(found, number, held, limits) else prefetch
        begin, own = found[max(0, number - ahead)].begin, updates.get(gather.action.stage, [])
        updated = bisect_left(own, gather.begin)
        gather.issue = max(begin, own[updated - 1] + 1) if updated else begin
    return found


def _updates(program: Program) -> dict[int, list[int]]:
    """The indices of the optimizer steps that update each stage."""
    stages, updates = updated_stages(program), dict[int, list[int]]()
    for index, op in enumerate(program.ops):
        for stage in stages.get(op.name, ()):
            updates.setdefault(stage, []).append(index)
    return updates


def _not_ahead(found: Sequence[Gather], number: int, held: Mapping[str, Weights], limits: Limits) -> bool:
    """True if that gather is issued when it is needed: the layer is too large, or was released after R just before."""
    one, before = found[number], found[number - 1]
    recomputed = before.layer == one.layer and before.action.phase == "R"
    return recomputed or max(tensor.count for tensor in held[one.layer].tensors) >= limits.live


def _uses(program: Program, held: Mapping[str, Weights]) -> list[Gather]:
    """A gather for each pass of a layer that reads its weights, in order of issue."""
    begins: dict[tuple[Action, str, int], int] = {}
    found: dict[tuple[Action, str, int], Gather] = {}
    runs: Counter[tuple[Action, str]] = Counter()
    latest: tuple[Action, str] | None = None
    for index, op in enumerate(program.ops):
        if not (op.action and op.layer and op.action.phase in "FRBI" and held[op.layer].parameters):
            continue
        place = op.action, op.layer
        runs[place] += not runs[place] or (op.action.phase == "R" and place != latest)
        latest = place
        key = *place, runs[place]
        begins.setdefault(key, index)
        if isinstance(op, Compute):
            found.setdefault(key, Gather(*place, begins[key], index, index, run=runs[place])).last = index
    return sorted(found.values(), key=lambda use: use.begin)


def unsharded(
    program: Program,
    held: Mapping[str, Weights],
    width: int,
    over: str,
    *,
    reshard: bool = True,
    prefetch: int = 1,
    overlap: bool = True,
    limits: Limits = Limits(),
    tensors: PerTensor | None = None,
    suffix: str = "",
    made: Callable[[Collective], Iterable[Op]] | None = None,
) -> Program:
    """*program* with its `gathers` as all-gathers over the axis *over*; *width*: bytes of a parameter.

    They are on the stream ``dp.gather``. Without *overlap* each blocks the computation just before its use. The first
    gather of a step blocks in any case: it follows the update of the previous step, and no computation could run
    beside it. The buffer is allocated when the gather begins and freed at the end of the last use. *tensors*: gather
    tensor by tensor. *suffix*: of the names of the gathers. *made*: the ops in place of a gather, the last of its name.
    """
    nbytes = {name: weights.gathered(width) for name, weights in held.items()}
    found = gathers(program, held, reshard=reshard, prefetch=prefetch if overlap else 0, limits=limits)
    issued: dict[int, list[Gather]] = {}
    for gather in found:
        issued.setdefault(gather.issue, []).append(gather)
    needed = {gather.first: gather.name + suffix for gather in found}
    freed = {gather.last: nbytes[gather.layer] for gather in found}
    computed = ""
    ops: list[Op] = []
    for index, op in enumerate(program.ops):
        for gather in issued.get(index, ()):
            collective = _all_gather(gather, suffix, over, nbytes[gather.layer], computed if overlap else "")
            ops += made(collective) if made else _by_tensor(collective, held[gather.layer], width, tensors)
            computed = computed or collective.name
        new = replace(op, after=(*op.after, needed[index])) if index in needed else op
        ops.append(replace(new, frees=added(new.frees, "buffers", freed[index])) if index in freed else new)
        computed = op.name if op.stream == "compute" else computed
    return replace(program, ops=tuple(ops))


def _by_tensor(collective: Collective, weights: Weights, width: int, tensors: PerTensor | None) -> Iterator[Op]:
    if tensors is None:
        return iter((collective,))
    return per_tensor(collective, tensors.sizes(weights, width), tensors.seconds)


def _all_gather(gather: Gather, suffix: str, over: str, nbytes: float, after: str) -> Collective:
    return Collective(
        name=gather.name + suffix,
        action=gather.action,
        kind="all_gather",
        over=over,
        nbytes=nbytes,
        stream="dp.gather" if after else "compute",
        after=(after,) if after else (),
        allocates={"buffers": nbytes},
    )
