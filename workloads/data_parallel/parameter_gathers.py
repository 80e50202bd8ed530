"""Sharded parameters are gathered before use and released after it, layer by layer or tensor by tensor.

A gather runs on a stream of its own, ahead of the computation, but at most *prefetch* layers ahead, so that few layers
are gathered at once. It may be in fewer bits, or in the backward pass come from a second copy in the node.

Tensor by tensor: torch's ``all_gather`` and ``reduce_scatter`` with a list of tensors, copied from and to a flat buffer
(torch/lib/c10d/ProcessGroupNCCL.cpp), before ``_all_gather_base`` of 2021; and with it DeepSpeed's ZeRO-3 until January
2022 (deepspeed v0.3.13, runtime/zero/partition_parameters.py, ``_allgather_param``, ``_reduce_scatter_gradient``;
changed in its pull request 1453). The host time grows with the number of ranks. The GPU waits for it, since each gather
synchronises with the device, and it reads and writes the tensors more often.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import NamedTuple

import numpy as np

from clustersim.simulator.hardware.kernel import Operation, measured, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, PLACEHOLDER_TEXT, Action
from clustersim.simulator.schedule.program import BlockList, Program, TemplatedOps
from clustersim.simulator.schedule.records import changed
from clustersim.workloads.data_parallel.buckets import Bucket, Reduction, Weights, wrapped
from clustersim.workloads.data_parallel.gradients import COMPUTE, updated_stages
from clustersim.workloads.data_parallel.sharded_states import added

SLICES = Operation("slices of tensors", "elementwise")
COPIES = Operation("copies of gathered parameters", "elementwise")

TRAFFIC = {"all_gather": 3.0, "reduce_scatter": 4.0}
"""How often the bytes of a tensor pass through memory beside the collective. A gather's buffer is zeroed and copied to
the views; gradients are divided by the number of ranks and copied from them (both files above; stage3.py,
``average_tensor``)."""


def per_tensor(op: Collective, sizes: Sequence[float], seconds: float) -> Iterator[Op]:
    """A collective like *op* for each tensor of *sizes* bytes, after *seconds* of the host for each of them.

    The time of the host and of the GPU's copies is on the stream ``compute``. The first collective allocates what *op*
    allocates. The last one has its name and frees what it frees.
    """
    host = f"{op.name}.slices"
    nbytes = TRAFFIC[op.kind] * sum(sizes)
    kernels = measured(seconds * len(sizes), operation=SLICES), memory_bound(nbytes, operation=SLICES)
    yield Compute(name=host, after=op.after, kernels=kernels)
    after = () if op.stream == "compute" else (host,)
    for number, nbytes in enumerate(sizes, start=1):
        last = number == len(sizes)
        yield replace(
            op,
            name=op.name if last else f"{op.name}.{number}",
            nbytes=nbytes,
            after=after,
            allocates=op.allocates if number == 1 else {},
            frees=op.frees if last else {},
        )


def reduced_per_tensor(reduction: Reduction, seconds: float) -> Reduction:
    """*reduction* with its collectives tensor by tensor, and *seconds* of the host for each."""

    def reduce(bucket: Bucket) -> Iterator[Op]:
        for op in reduction(bucket):
            if isinstance(op, Collective):
                share = op.nbytes / bucket.nbytes
                yield from per_tensor(op, [share * nbytes for nbytes in bucket.tensors], seconds)
            else:
                yield op

    return wrapped(reduction, reduce)


@dataclass(frozen=True, slots=True)
class Gathering:
    """Gathers of ZeRO++ (`workloads.reductions.zeropp`), over *ranks* ranks.

    *element_bytes*: of a quantised element with its share of the scales; None: parameters travel as they are.
    *partition*: so many neighbours, which are a group of the axis *axis*, hold a second copy of all parameters, in
    shards, for the backward pass; 1: there is none.
    """

    element_bytes: float | None = None
    partition: int = 1
    axis: str = ""
    ranks: int = 1

    def second_copy(self, phase: str) -> bool:
        """True if a gather for *phase* comes from the second copy: all but those of a forward pass."""
        return self.partition > 1 and phase != "F"

    def quantised(
        self, gather: Collective, elements: float, reader: str
    ) -> tuple[tuple[Compute, ...], Collective, tuple[Op, ...]]:
        """*gather* in fewer bits: what precedes it, the gather itself, and what its reader waits for.

        A rank quantises its shard on the stream of the gather. The reader's stream, *reader*, dequantises all
        (DeepSpeed, runtime/zero/partition_parameters.py, ``AllGatherCoalescedHandle.wait``). *elements*: of the whole.
        """
        if self.element_bytes is None:
            return (), gather, ()
        coded, width = elements * self.element_bytes, gather.nbytes / elements
        shards = self.partition if gather.over == self.axis else self.ranks
        quantise = Compute(
            name=f"{gather.name}.quantise",
            stream=gather.stream,
            after=gather.after,
            kernels=(memory_bound((width + self.element_bytes) * elements / shards),),
        )
        dequantise = Compute(
            name=f"{gather.name}.dequantise",
            stream=reader,
            after=(gather.name,),
            kernels=(memory_bound((width + self.element_bytes) * elements),),
            frees={"buffers": coded},
        )
        held = {**gather.allocates, "buffers": gather.allocates.get("buffers", 0.0) + coded}
        return (quantise,), replace(gather, nbytes=coded, after=(), allocates=held), (dequantise,)


PLAIN = Gathering()
"""Parameters are gathered as they are, from all ranks that share them."""


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """Limits on gathered parameters, in elements, as DeepSpeed has them (runtime/zero/config.py).

    *reuse* (``stage3_max_reuse_distance``): release a layer if more elements are used before its reuse. Between the
    recomputation of a layer and its backward pass these are, on average, the elements of the layer itself. *live*
    (``stage3_max_live_parameters``): gather nothing ahead while a tensor of this size is gathered.
    """

    reuse: float = inf
    live: float = inf


NO_LIMITS = GatherLimits()


@dataclass(frozen=True, slots=True)
class PerTensor:
    """Gather tensor by tensor, with *seconds* of the host for each; tensors below *persistent* elements stay whole."""

    persistent: int
    seconds: float

    def sizes(self, weights: Weights, width: int) -> tuple[float, ...]:
        """Bytes of the tensors of *weights* that are gathered; all together if none is large enough."""
        large = tuple(tensor.gathered(width) for tensor in weights.tensors if tensor.count >= self.persistent)
        return large or (weights.gathered(width),)


class Unit(NamedTuple):
    """What is gathered: *layer* for *action*; *run* counts its recomputations before one backward pass."""

    action: Action
    layer: str
    run: int = 1

    @property
    def name(self) -> str:
        """The name of the gather."""
        return f"{self.action}.{self.layer}.gather" + (f" run {self.run}" if self.run > 1 else "")


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

    def within(self, micro_batch: int | None) -> Unit:
        """What is gathered, as a block of that *micro_batch* names it: with a placeholder for its own one."""
        own = micro_batch is not None and micro_batch == self.action.micro_batch
        return Unit(self.action._replace(micro_batch=PLACEHOLDER) if own else self.action, self.layer, self.run)


def gathers(
    program: Program,
    held: Mapping[str, Weights],
    *,
    reshard: bool = True,
    prefetch: int = 1,
    limits: GatherLimits = NO_LIMITS,
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
    large = {name for name, own in held.items() if any(tensor.count >= limits.live for tensor in own.tensors)}
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
        ahead = 0 if gather.layer in large or _released_before(found, number) else prefetch
        begin, own = found[max(0, number - ahead)].begin, updates.get(gather.action.stage, [])
        updated = bisect_left(own, gather.begin)
        gather.issue = max(begin, own[updated - 1] + 1) if updated else begin
    return found


def _updates(program: Program) -> dict[int, list[int]]:
    """The indices of the optimizer steps that update each stage."""
    stages, updates = updated_stages(program), dict[int, list[int]]()
    ops = program.templated
    of = [[(place, stages[op.name]) for place, op in enumerate(own) if op.name in stages] for own in ops.templates]
    for start, template in zip(ops.starts.tolist(), ops.which.tolist(), strict=False):
        for place, updated in of[template]:
            for stage in updated:
                updates.setdefault(stage, []).append(start + place)
    return updates


def _released_before(found: Sequence[Gather], number: int) -> bool:
    """True if the layer of that gather was released after its recomputation just before: it is issued when needed."""
    one, before = found[number], found[number - 1]
    return before.layer == one.layer and before.action.phase == "R"


class Passage(NamedTuple):
    """Consecutive ops of a template that belong to one pass of a *layer* and read its weights: *action* is that of the
    template, *begin* the place of the first, *first* and *last* those of Computes; None if there is none."""

    action: Action
    layer: str
    begin: int
    first: int | None
    last: int | None


def _passages(ops: Sequence[Op], held: Mapping[str, Weights]) -> list[Passage]:
    """The passages of a template, in order of issue."""
    found: list[Passage] = []
    for place, op in enumerate(ops):
        if not (op.action and op.layer and op.action.phase in "FRBI" and held[op.layer].parameters):
            continue
        computes = place if isinstance(op, Compute) else None
        if not found or found[-1][:2] != (op.action, op.layer):
            found.append(Passage(op.action, op.layer, place, computes, computes))
        elif computes is not None:
            first = found[-1].first
            found[-1] = found[-1]._replace(first=place if first is None else first, last=place)
    return found


def _uses(program: Program, held: Mapping[str, Weights]) -> list[Gather]:
    """A gather for each pass of a layer that reads its weights, in order of issue."""
    begins: dict[tuple[Action, str, int], int] = {}
    found: dict[tuple[Action, str, int], Gather] = {}
    runs: Counter[tuple[Action, str]] = Counter()
    latest: tuple[Action, str] | None = None
    ops = program.templated
    passages = [_passages(template, held) for template in ops.templates]
    for start, which, own in zip(ops.starts.tolist(), ops.which.tolist(), ops.micro_batches.tolist(), strict=False):
        for (phase, stage, micro_batch), layer, begin, first, last in passages[which]:
            place = Action(phase, stage, own if micro_batch == PLACEHOLDER else micro_batch), layer
            runs[place] += not runs[place] or (phase == "R" and place != latest)
            latest = place
            key = *place, runs[place]
            begins.setdefault(key, start + begin)
            if first is not None and last is not None:
                new = Gather(*place, begins[key], start + first, start + last, run=key[2])
                found.setdefault(key, new).last = start + last
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
    limits: GatherLimits = NO_LIMITS,
    tensors: PerTensor | None = None,
    suffix: str = "",
    made: Callable[[Collective], Iterable[Op]] | None = None,
    gathering: Gathering = PLAIN,
    copied: bool = False,
) -> Program:
    """*program* with its `gathers` as all-gathers over the axis *over*; *width*: bytes of a parameter.

    They are on the stream ``dp.gather``. Without *overlap* each blocks the computation just before its use. The first
    gather of a step blocks in any case: it follows the update of the previous step, and no computation could run
    beside it. The buffer is allocated when the gather begins and freed at the end of the last use. *tensors*: gather
    tensor by tensor. *suffix*: of the names of the gathers. *made*: the ops in place of a gather, the last of its name.
    *gathering*: in fewer bits, or in the backward pass from a second copy. *copied*: the first Compute that reads
    gathered parameters copies them to tensors.
    """
    nbytes = {name: weights.gathered(width) for name, weights in held.items()}
    found = gathers(program, held, reshard=reshard, prefetch=prefetch if overlap else 0, limits=limits)

    def gathered(unit: Unit, after: str, reader: str) -> tuple[list[Op], tuple[Op, ...]]:
        """The ops of a gather, the last one of its name, and the ops of its reader before the first use, if any."""
        weights = held[unit.layer]
        source = gathering.axis if gathering.second_copy(unit.action.phase) else over
        collective = _all_gather(unit, suffix, source, nbytes[unit.layer], after)
        quantise, sent, awaited = gathering.quantised(collective, weights.parameters, reader)
        return [*quantise, *(made(sent) if made else _by_tensor(sent, weights, width, tensors))], awaited

    def needing(unit: Unit, op: Op) -> list[Op]:
        _, waits = gathered(unit, "", op.stream)
        if copied and isinstance(op, Compute):
            op = changed(op, kernels=(memory_bound(2 * nbytes[unit.layer], operation=COPIES), *op.kernels))
        return [*waits, changed(op, after=(*op.after, waits[-1].name if waits else unit.name + suffix))]

    placing = _Placing(program, lambda *one: gathered(*one)[0], needing, overlap=overlap)
    return program.with_templated_ops(placing.placed(found, nbytes))


ISSUED, NEEDED, RELEASED = range(3)
"""What happens at an op, in this order: a gather is issued before it, it needs a gather, it frees a gathered layer."""


class _Event(NamedTuple):
    """What happens at the op at *place* of a block, with which *unit*.

    What is issued waits for the op *after*, if any, and is read by the stream *reader*. *frees*: bytes. *apart*: the
    micro-batch of a gather that another one needs, or that waits for another one's op: it is a block of its own.
    """

    place: int
    kind: int
    unit: Unit | None = None
    after: str = ""
    reader: str = ""
    frees: float = 0.0
    apart: int | None = None


class _Placing:
    """Places gathers in *program*: in each template once for all its blocks in which the same happens.

    *issued* returns the ops of a gather after the op of that name, for a reader on that stream. *needing* returns what
    becomes of the first op that needs a gather. Without *overlap* gathers wait for no op.
    """

    def __init__(
        self,
        program: Program,
        issued: Callable[[Unit, str, str], Sequence[Op]],
        needing: Callable[[Unit, Op], Sequence[Op]],
        *,
        overlap: bool,
    ) -> None:
        self.ops, self._issued, self._needing, self._overlap = program.templated, issued, needing, overlap
        self._starts: list[int] = self.ops.starts[:-1].tolist()
        self._which: list[int] = self.ops.which.tolist()
        self._micro_batches: list[int] = self.ops.micro_batches.tolist()
        self._computes = np.flatnonzero(program.column(lambda op: op.stream == COMPUTE, np.bool_))
        self._known: dict[Hashable, tuple[Op, ...]] = {}

    def placed(self, found: Sequence[Gather], nbytes: Mapping[str, float]) -> TemplatedOps:
        """The ops of the program with the gathers *found*, of *nbytes* by layer."""
        events: defaultdict[int, list[_Event]] = defaultdict(list)
        for number, event in chain(self._issues(found), self._uses(found, nbytes)):
            events[number].append(event)
        blocks, own = BlockList(), self._micro_batches
        for number, which in enumerate(self._which):
            begin, inside = 0, list[_Event]()
            for event in sorted(events[number], key=lambda one: one[:2]):
                if event.apart is None or event.unit is None:
                    inside.append(event)
                    continue
                blocks.add(self._piece(which, begin, event.place, inside), own[number])
                blocks.add(tuple(self._issued(event.unit, event.after, event.reader)), event.apart)
                begin, inside = event.place, []
            blocks.add(self._piece(which, begin, len(self.ops.templates[which]), inside), own[number])
        return blocks.ops()

    def _piece(self, template: int, begin: int, end: int, events: Sequence[_Event]) -> tuple[Op, ...]:
        """The ops of *template* from *begin* to *end* with *events*, in order of place and kind."""
        key = template, begin, end, tuple(events)
        if key in self._known:
            return self._known[key]
        ops, at = list[Op](), begin
        for event in events:
            upto = event.place + (event.kind != ISSUED)
            ops += self.ops.templates[template][at:upto]
            at = upto
            if event.unit is None:
                ops[-1] = changed(ops[-1], frees=added(ops[-1].frees, "buffers", event.frees))
            elif event.kind == ISSUED:
                ops += self._issued(event.unit, event.after, event.reader)
            else:
                ops += self._needing(event.unit, ops.pop())
        self._known[key] = (*ops, *self.ops.templates[template][at:end])
        return self._known[key]

    def _issues(self, found: Sequence[Gather]) -> Iterator[tuple[int, _Event]]:
        """(number of the block, event) of each gather where it is issued, in order."""
        first = ""
        for gather in sorted(found, key=lambda one: one.issue):
            number, place = self._at(gather.issue)
            reader, own = self._op(gather.first).stream, self._micro_batch(number)
            unit, micro_batch = gather.within(own), gather.action.micro_batch
            before = int(self._computes.searchsorted(gather.issue)) - 1
            after, of = "", own
            if self._overlap and before >= 0:
                awaited = int(self._computes[before])
                after, of = self._op(awaited).name, self._micro_batch(self._at(awaited)[0])
            elif self._overlap:
                # the first one blocks: there is no computation that could run beside it
                after, first = first, first or self._issued(gather.within(None), "", reader)[-1].name
            if own is None or (micro_batch == own == of):
                yield number, _Event(place, ISSUED, unit, _filled(after, of, own), reader)
            else:
                unit, after = gather.within(micro_batch), _filled(after, of, micro_batch)
                apart = PLACEHOLDER if micro_batch is None else micro_batch
                yield number, _Event(place, ISSUED, unit, after, reader, apart=apart)

    def _uses(self, found: Sequence[Gather], nbytes: Mapping[str, float]) -> Iterator[tuple[int, _Event]]:
        """(number of the block, event) of each op that needs a gather, or releases what was gathered."""
        for gather in found:
            number, place = self._at(gather.first)
            yield number, _Event(place, NEEDED, gather.within(self._micro_batch(number)))
        for last, layer in {gather.last: gather.layer for gather in found}.items():
            number, place = self._at(last)
            yield number, _Event(place, RELEASED, frees=nbytes[layer])

    def _at(self, index: int) -> tuple[int, int]:
        """The number of the block of the op of that *index*, and the place of the op in it."""
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def _micro_batch(self, number: int) -> int | None:
        own = self._micro_batches[number]
        return None if own == PLACEHOLDER else own

    def _op(self, index: int) -> Op:
        """The op of that *index* in its template."""
        number, place = self._at(index)
        return self.ops.templates[self._which[number]][place]


def _filled(name: str, micro_batch: int | None, own: int | None) -> str:
    """The *name* of an op of *micro_batch* as an op of *own* waits for it."""
    return name if micro_batch is None or micro_batch == own else name.replace(PLACEHOLDER_TEXT, str(micro_batch))


def with_second_copy(program: Program, held: Mapping[str, Weights], width: int, gathering: Gathering) -> Program:
    """*program* with what the second copy of *gathering*, if there is one, takes all step; *held*: of these weights."""
    if gathering.partition == 1:
        return program
    nbytes = sum(weights.gathered(width) for weights in held.values()) / gathering.partition
    return replace(program, resident=added(program.resident, "parameters", nbytes))


def _by_tensor(collective: Collective, weights: Weights, width: int, tensors: PerTensor | None) -> Iterator[Op]:
    if tensors is None:
        return iter((collective,))
    return per_tensor(collective, tensors.sizes(weights, width), tensors.seconds)


def _all_gather(unit: Unit, suffix: str, over: str, nbytes: float, after: str) -> Collective:
    return Collective(
        name=unit.name + suffix,
        action=unit.action,
        kind="all_gather",
        over=over,
        nbytes=nbytes,
        stream="dp.gather" if after else "compute",
        after=(after,) if after else (),
        allocates={"buffers": nbytes},
    )
