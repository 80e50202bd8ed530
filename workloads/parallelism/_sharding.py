"""A training step with states divided within groups of replicas, and how ranks get the updated parameters.

DeepSpeed and Megatron-LM gather shards of equal size. InternLM assigns whole tensors to ranks, each to the rank with
the fewest elements so far, and every rank broadcasts its own (InternLM/InternLM at 20fe5ac2, solver/optimizer/
hybrid_zero_optim.py, ``_partition_param_list`` and ``broadcast_params``): as many broadcasts as ranks that have any.

Every rank keeps its shards, and updates its shard of the parameters. What it lacks is communicated:

- Gradients are reduced in buckets. If they are divided, each backward pass reduce-scatters them within their groups. In
  the last one before an optimizer step the shards are reduce-scattered on, to the ranks that share the optimizer
  states, and all-reduced over the ranks with the same shard: the two-hop synchronisation of MiCS (arXiv:2205.00119,
  section 3.4). torch's hybrid shards are all-reduced in every backward pass.
- Parameters are gathered before each use if they are divided. If the optimizer states are divided further, the updated
  parameters are gathered after the step, up to the shard that a rank keeps.

Bytes that a rank sends, by rings, for P bytes of parameters, as many bytes of gradients and m micro-batches, with
groups of p, g and o of n replicas: 2 m P (p - 1) / p to gather parameters; m P (g - 1) / g to reduce gradients in
groups; P (o - g) / (o g) and 2 P (n - o) / (n o) across them; P (o - p) / (o p) to gather updated parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from heapq import heapify, heapreplace
from typing import Any, Literal

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import NO_COPIES, Bucket, BucketCopies, Reduction, Weights
from clustersim.workloads.data_parallel.gradients import (
    after_backward,
    flattened,
    map_replicas,
    reduce_gradients,
    sharded_gradient_norm,
    updated_stages,
    weights_by_stage,
)
from clustersim.workloads.data_parallel.parameter_gathers import (
    PLAIN,
    Gathering,
    PerTensor,
    reduced_per_tensor,
    unsharded,
    with_second_copy,
)
from clustersim.workloads.data_parallel.sharded_states import STATES, GroupSizes, double_buffered, sharded_states
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.reductions.all_reduce import all_reduce
from clustersim.workloads.reductions.reduce_scatter import Hop, reduce_scatter

GATHER_ELEMENTS = 500_000_000
"""DeepSpeed, runtime/zero/config.py: ``allgather_bucket_size`` of 5e8 elements."""

MOST_GATHERS = 10_000
"""All-gathers of a rank after an optimizer step at most: 5e12 parameters in one rank, more than any GPU holds."""


def gathered_ahead(program: Program, stages: Mapping[int, Sequence[Weights]], width: int, over: str) -> Program:
    """Return *program* with an all-gather of each layer at its begin; the layer's first forward pass waits for it."""
    own = [weights for stage in stages.values() for weights in stage if weights.parameters]
    if not own:
        return program
    gathers = tuple(
        Collective(
            name=f"{weights.name}.gather{suffix(over)}",
            kind="all_gather",
            over=over,
            nbytes=weights.gathered(width),
            stream="dp.gather",
        )
        for weights in own
    )
    awaited = {weights.name: gather.name for weights, gather in zip(own, gathers, strict=True)}

    def awaiting(op: Op) -> Op:
        name = awaited.pop(op.layer, None) if isinstance(op, Compute) and op.layer else None
        return op if name is None else changed(op, after=(*op.after, name))

    blocks = [OpBlock(gathers)]
    for block in program.blocks:
        first = any(op.layer in awaited for op in block.ops) if awaited else False
        blocks.append(OpBlock(tuple(map(awaiting, block.materialise().ops)), block.micro_batch) if first else block)
    return replace(program, ops=TemplatedOps(blocks))


def gathered_after(
    program: Program, stages: Mapping[int, Sequence[Weights]], width: int, over: str, share: float = 1.0
) -> Program:
    """Return *program* with all-gathers of the updated parameters, or a *share* of them, after each optimizer step."""
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in updates:
            own = [weights for stage in updates[op.name] for weights in stages.get(stage, ())]
            elements = sum(weights.parameters for weights in own)
            _check_gathers(elements)
            each = sum(weights.gathered(width) for weights in own) / max(1, elements)
            for number, begin in enumerate(range(0, elements, GATHER_ELEMENTS)):
                nbytes = min(GATHER_ELEMENTS, elements - begin) * each * share
                name = f"{op.name}.gather{number}{suffix(over)}"
                yield Collective(name=name, action=op.action, kind="all_gather", over=over, nbytes=nbytes)

    return program.map_ops(change)


def broadcast_after(
    program: Program, stages: Mapping[int, Sequence[Weights]], width: int, over: str, ranks: int
) -> Program:
    """Return *program* with a broadcast by each of *ranks* owners after each optimizer step.

    Every broadcast starts from coordinate 0: the ranks of a ring are equal.
    """
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in updates:
            own = [weights for stage in updates[op.name] for weights in stages.get(stage, ())]
            counts = owned_elements([tensor.count for weights in own for tensor in weights.tensors], ranks)
            for number, elements in enumerate(counts):
                name = f"{op.name}.broadcast{number}{suffix(over)}"
                nbytes = float(elements * width)
                yield Collective(name=name, action=op.action, kind="broadcast", over=over, nbytes=nbytes)

    return program.map_ops(change)


def owned_elements(tensors: Sequence[int], ranks: int) -> list[int]:
    """Return the elements of each rank that owns any of *tensors* (elements of each), the largest given out first.

    >>> owned_elements([5, 3, 3, 1], 2), owned_elements([5, 3], 4)
    ([6, 6], [5, 3])
    """
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    held = [0] * ranks
    for count in sorted(tensors, reverse=True):
        _, rank = loads[0]
        held[rank] += count
        heapreplace(loads, (held[rank], rank))
    return [elements for elements in held if elements]


def _check_gathers(elements: int) -> None:
    if elements > MOST_GATHERS * GATHER_ELEMENTS:
        raise ScenarioError(
            f"a rank gathers {elements:.3g} updated parameters, {GATHER_ELEMENTS:.3g} at a time; at most "
            f"{MOST_GATHERS:,} gathers are simulated: divide the model further with tp or pp, or take stage 3"
        )


def suffix(axis: str) -> str:
    """Return the end of the names of gathers over *axis*; empty for the axis of the replicas."""
    return "" if axis == REPLICAS else f" over {axis}"


PERSISTENT_ELEMENTS = 100_000
"""DeepSpeed, runtime/zero/config.py, ``stage3_param_persistence_threshold``: smaller tensors stay whole. Modelled
only if tensors are gathered one by one; otherwise their bytes are negligible."""

BucketRule = Callable[[Sequence[Weights], str], list[Bucket]]
"""(layers in forward order, axis over which their gradients are reduced) -> buckets."""

Updates = Literal["gathered", "ahead", "broadcast"]
"""How ranks get parameters that others have updated: gathered after the step, or layer by layer beside the next forward
pass, or broadcast by their owners."""


@dataclass(frozen=True)
class Sharding:
    """How the states of *model*, whose layers are those of one rank, are divided by *sizes*, and exchanged.

    *buckets* of gradients in *gradient_dtype*, each by *reduction*: see `reduction_of`. With *overlap* exchanges have
    streams of their own, else they block, and gradients that are not divided are reduced after the backward pass.
    *all_reduced*: gradients are all-reduced over all replicas, although ranks need their shards only. *in_place*:
    buckets are parts of the gradients and need no buffers. *accumulated*: divided gradients are held whole, and
    reduced in the last backward passes before a step only. *copies*: as of `reduce_gradients`.

    *gathers*: options of `unsharded`. *gathering*: of parameters. *slice_seconds*: parameters and gradients are
    exchanged tensor by tensor, and the host takes so long for each rank's slice of each tensor
    (`workloads.data_parallel.parameter_gathers`). *norm*: it is all-reduced before the step.
    """

    model: Model
    sizes: GroupSizes
    buckets: BucketRule
    reduction: Reduction
    gradient_dtype: str
    overlap: bool = True
    all_reduced: bool = False
    in_place: bool = False
    accumulated: bool = False
    copies: BucketCopies = NO_COPIES
    gathers: Mapping[str, Any] = field(default_factory=dict)
    gathering: Gathering = PLAIN
    slice_seconds: float = 0.0
    updated: Updates = "gathered"
    norm: bool = True

    def applied(self, schedule: Schedule) -> Schedule:
        """*schedule*, whose mesh has the axes of the groups, with these exchanges."""
        return map_replicas(schedule, self.model, self._applied)

    def _applied(self, program: Program, degrees: Mapping[str, int]) -> Program:
        """*program* with sharded states; *degrees*: the number of replicas by axis."""
        stages = weights_by_stage(program, self.model)
        for state in filter(self.sizes.divides, STATES):
            if state == "gradients" and self.accumulated:
                continue
            shards = {axis: self._ranks(state, axis, degree) for axis, degree in degrees.items()}
            over = {axis: self._axis(axis, "optimizer") for axis in degrees}
            program = sharded_states(program, (state,), shards, stages, over)
        seconds = self.slice_seconds * degrees.get(REPLICAS, 1)
        program = self._with_reductions(program, stages, degrees, seconds)
        for axis, degree in degrees.items():
            own = {number: [weights.over(axis) for weights in several] for number, several in stages.items()}
            shards = {state: self._ranks(state, axis, degree) for state in STATES}
            program = self._with_gathers(program, own, axis, shards, seconds)
            program = self._with_updates(program, own, axis, shards)
        norm = self.norm and self.sizes.divides("optimizer")
        return sharded_gradient_norm(program, self.sizes.axis("optimizer")) if norm else program

    def _axis(self, axis: str, outer: str, inner: str = "") -> str:
        """The axis of the groups of tensors with replicas on *axis*."""
        return self.sizes.axis(outer, inner) if axis == REPLICAS else axis

    def _ranks(self, state: str, axis: str, degree: int) -> int:
        """The ranks that share *state* of tensors with *degree* replicas on *axis*."""
        if axis == REPLICAS:
            return self.sizes.ranks(state, degree)
        return degree if self.sizes.divides(state) else 1

    def _with_reductions(
        self, program: Program, stages: Mapping[int, Sequence[Weights]], degrees: Mapping[str, int], seconds: float
    ) -> Program:
        """*program* with its gradients reduced in buckets; *seconds* of the host for each tensor."""
        divided = self.sizes.divides("gradients")
        every = divided and not self.accumulated
        first = REPLICAS if self.all_reduced else first_axis(self.sizes)
        buckets = {
            number: [self._bucket(one, first) for axis in degrees for one in self.buckets(own, axis)]
            for number, own in stages.items()
        }
        reduction = reduced_per_tensor(self.reduction, seconds) if seconds else self.reduction
        in_backward = self.overlap or divided
        if not in_backward:
            buckets, reduction = after_backward(program, buckets), flattened(reduction)
        ranks = {first: self.sizes.ranks("gradients" if divided else "optimizer"), **degrees}
        program = reduce_gradients(program, buckets, reduction, ranks, every=every, copies=self.copies)
        if in_backward and not self.in_place:
            program = double_buffered(program, stages, self.gradient_dtype, degrees)
        return program

    def _bucket(self, bucket: Bucket, first: str) -> Bucket:
        """*bucket* over the axis of its first reduction."""
        over = first if bucket.over == REPLICAS else bucket.over
        return changed(bucket, over=over, buffer=0.0 if self.in_place else bucket.buffer)

    def _with_gathers(
        self,
        program: Program,
        own: Mapping[int, Sequence[Weights]],
        axis: str,
        shards: Mapping[str, int],
        seconds: float,
    ) -> Program:
        """*program* with gathers of the parameters *own*, by pipeline stage, before each use, if they are divided.

        *shards*: the ranks that share each state of those with replicas on *axis*.
        """
        if shards["parameters"] == 1:
            return program
        held = {weights.name: weights for several in own.values() for weights in several}
        width = BYTES[self.model.precision]
        gathering = self.gathering if axis == REPLICAS else PLAIN
        return unsharded(
            with_second_copy(program, held, width, gathering),
            held,
            width,
            self._axis(axis, "parameters"),
            overlap=self.overlap,
            tensors=PerTensor(PERSISTENT_ELEMENTS, seconds) if seconds else None,
            suffix=suffix(axis),
            gathering=gathering,
            **self.gathers,
        )

    def _with_updates(
        self, program: Program, own: Mapping[int, Sequence[Weights]], axis: str, shards: Mapping[str, int]
    ) -> Program:
        """*program* with what brings parameters that other ranks have updated; arguments as of `_with_gathers`."""
        if shards["optimizer"] <= shards["parameters"]:
            return program
        width, over = BYTES[self.model.precision], self._axis(axis, "optimizer", "parameters")
        updated = {number: [weights.trained for weights in several] for number, several in own.items()}
        if self.updated == "ahead":
            return gathered_ahead(program, updated, width, over)
        if self.updated == "broadcast":
            return broadcast_after(program, updated, width, over, shards["optimizer"])
        return gathered_after(program, updated, width, over, share=1 / shards["parameters"])


def first_axis(sizes: GroupSizes) -> str:
    """The axis over which gradients are reduced first: the smallest group of several ranks."""
    return next((sizes.axis(state) for state in ("gradients", "optimizer") if sizes.divides(state)), REPLICAS)


def reduction_of(sizes: GroupSizes, stream: str | None, *, each_pass: bool = False) -> Reduction:
    """The reduction of a bucket of gradients with these group *sizes*, over `first_axis` and then across groups.

    *stream*: as of `reduce_scatter`. *each_pass*: shards are all-reduced across groups in each backward pass, not only
    in the last one before an optimizer step.
    """
    if not sizes.divides("optimizer"):
        return all_reduce(stream)
    gradients, optimizer = sizes.ranks("gradients"), sizes.ranks("optimizer")
    hops = []
    if 1 < gradients < optimizer:
        over = sizes.axis("optimizer", "gradients")
        hops.append(Hop("reduce_scatter", over, gradients, "dp.across", "states", last_only=True))
    if optimizer < sizes.replicas:
        over = sizes.axis("replicas", "optimizer")
        hops.append(Hop("all_reduce", over, optimizer, "dp.across", last_only=not each_pass))
    return reduce_scatter(stream, {first_axis(sizes): hops})
