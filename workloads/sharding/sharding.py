"""A training step whose states are divided within groups of replicas: ZeRO, FSDP, and hybrids of them.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from simulator.kernel import BYTES
from simulator.schedule import Program, Schedule
from workloads.gradients.bucket import NO_COPIES, Bucket, BucketCopies, Reduction, Weights
from workloads.gradients.norm import sharded_gradient_norm
from workloads.gradients.per_tensor import reduced_per_tensor
from workloads.gradients.reduce import after_backward, flattened, map_replicas, reduce_gradients, weights_by_stage
from workloads.model import Model
from workloads.operators.parameter import REPLICAS
from workloads.reductions.all_reduce import all_reduce
from workloads.reductions.reduce_scatter import Hop, reduce_scatter
from workloads.sharding.gathers import PLAIN, Gathering, PerTensor, unsharded, with_second_copy
from workloads.sharding.groups import STATES, GroupSizes
from workloads.sharding.states import double_buffered, sharded_states
from workloads.sharding.updates import broadcast_after, gathered_after, gathered_ahead, suffix

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
    buckets are parts of the gradients and need no buffers. *copies*: as of `reduce_gradients`.

    *gathers*: options of `unsharded`. *gathering*: of parameters. *slice_seconds*: parameters and gradients are
    exchanged tensor by tensor, and the host takes so long for each rank's slice of each tensor
    (`workloads.gradients.per_tensor`). *norm*: it is all-reduced before the step.
    """

    model: Model
    sizes: GroupSizes
    buckets: BucketRule
    reduction: Reduction
    gradient_dtype: str
    overlap: bool = True
    all_reduced: bool = False
    in_place: bool = False
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
        every = self.sizes.divides("gradients")
        first = REPLICAS if self.all_reduced else first_axis(self.sizes)
        buckets = {
            number: [self._bucket(one, first) for axis in degrees for one in self.buckets(own, axis)]
            for number, own in stages.items()
        }
        reduction = reduced_per_tensor(self.reduction, seconds) if seconds else self.reduction
        in_backward = self.overlap or every
        if not in_backward:
            buckets, reduction = after_backward(program, buckets), flattened(reduction)
        ranks = {first: self.sizes.ranks("gradients" if every else "optimizer"), **degrees}
        program = reduce_gradients(program, buckets, reduction, ranks, every=every, copies=self.copies)
        if in_backward and not self.in_place:
            program = double_buffered(program, stages, self.gradient_dtype, degrees)
        return program

    def _bucket(self, bucket: Bucket, first: str) -> Bucket:
        """*bucket* over the axis of its first reduction."""
        over = first if bucket.over == REPLICAS else bucket.over
        return replace(bucket, over=over, buffer=0.0 if self.in_place else bucket.buffer)

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
