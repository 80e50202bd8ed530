"""ZeRO with groups: each of the three states is divided within neighbours of its own number.

A backward pass reduce-scatters gradients within the groups that share them. In the last one before an optimizer step
the shards are reduce-scattered on, to the ranks that share the optimizer states, and all-reduced over those that hold
the same shard: MiCS's two-hop synchronisation (arXiv:2205.00119, section 3.4) where parameters, gradients and states
have one group. After the step the updated parameters are gathered, up to the shard that a rank keeps.

Bytes that a rank sends, by rings, for P bytes of parameters, as many bytes of gradients and m micro-batches, with
groups of p, g and o of n replicas: 2 m P (p - 1) / p to gather parameters; m P (g - 1) / g to reduce gradients in
groups; P (o - g) / (o g) and 2 P (n - o) / (n o) across them; P (o - p) / (o p) to gather updated parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.kernel import BYTES
from simulator.schedule import Program, Schedule
from workloads.gradients.after_backward import after_backward, flattened
from workloads.gradients.bucket import NO_COPIES, Bucket, BucketCopies, Reduction, Weights
from workloads.gradients.norm import sharded_gradient_norm
from workloads.gradients.reduce import map_replicas, reduce_gradients, weights_by_stage
from workloads.memory.sharding import double_buffered, sharded_states
from workloads.memory.unshard import Limits, unsharded
from workloads.model import Model
from workloads.operators.parameter import REPLICAS
from workloads.parallelism._gathers import gathered_after, suffix
from workloads.partial_sharding.axes import (
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    REPLICA,
    STATES,
    UPDATED,
    with_group_axes,
)
from workloads.partial_sharding.groups import Groups, GroupSizes
from workloads.reductions.all_reduce import all_reduce
from workloads.reductions.reduce_scatter import Hop, reduce_scatter

Buckets = Callable[[Sequence[Weights], str, float, str], list[Bucket]]
"""(layers, precision of gradients, bytes of a bucket, axis) -> buckets."""


def zero_groups(
    schedule: Schedule,
    model: Model,
    groups: Groups,
    buckets: Buckets,
    *,
    gradient_dtype: str,
    bucket: float,
    overlap: bool,
    limits: Limits,
    copies: BucketCopies = NO_COPIES,
    compressed: Callable[[Reduction], Reduction] | None = None,
) -> Schedule:
    """*schedule* with the states of *model* divided as *groups* say.

    *bucket*: bytes. With *overlap* reductions and gathers run beside the computation. *limits*: of gathered
    parameters. Options otherwise as in `zero`. Only tensors of the replicas (``dp``) have groups; a state of others,
    such as experts, is divided over all ranks of their axis if the groups divide it. Raises `ScenarioError` for groups
    that are not nested.
    """
    sizes = groups.sizes(max(schedule.degrees(REPLICAS)))
    schedule = with_group_axes(schedule, sizes)
    reduction = _reduction(sizes, "dp.reduce" if overlap else None)
    sharding = _Sharding(
        sizes,
        model,
        gradient_dtype,
        bucket,
        buckets,
        compressed(reduction) if compressed else reduction,
        overlap,
        limits,
        copies if sizes.parameters == 1 else NO_COPIES,
    )
    return map_replicas(schedule, model, sharding.applied)


def _reduction(sizes: GroupSizes, stream: str | None) -> Reduction:
    """Within the groups of gradients, then across them; over the axis that `_first_axis` names."""
    first = _first_axis(sizes)
    over_replicas = Hop("all_reduce", REPLICA, sizes.optimizer, "dp.across", "replicas", last_only=True)
    over_optimizer = Hop("reduce_scatter", OPTIMIZER, sizes.gradients, "dp.across", "states", last_only=True)
    hops = [
        *([over_optimizer] if first == GRADIENTS and sizes.optimizer > sizes.gradients else []),
        *([over_replicas] if sizes.replicas > sizes.optimizer else []),
    ]
    if first == REPLICAS:
        return all_reduce(stream)
    return reduce_scatter(stream, {first: hops})


def _first_axis(sizes: GroupSizes) -> str:
    """The axis of the first reduction: the smallest group of several ranks."""
    return GRADIENTS if sizes.gradients > 1 else OPTIMIZER if sizes.optimizer > 1 else REPLICAS


@dataclass(frozen=True)
class _Sharding:
    """The changes of `zero_groups` to one program. *bucket* is in bytes; other fields are those of `zero_groups`."""

    sizes: GroupSizes
    model: Model
    gradient_dtype: str
    bucket: float
    buckets: Buckets
    reduction: Reduction
    overlap: bool
    limits: Limits
    copies: BucketCopies

    def applied(self, program: Program, degrees: Mapping[str, int]) -> Program:
        """*program* with its states in shards; *degrees*: the number of replicas by axis."""
        sizes, stages = self.sizes, weights_by_stage(program, self.model)
        every = sizes.gradients > 1
        for category, shards in (
            ("parameters", sizes.parameters),
            ("gradients", sizes.gradients),
            ("optimizer", sizes.optimizer),
        ):
            of = {**{axis: axis for axis in degrees}, REPLICAS: STATES}
            others = degrees if shards > 1 else {}
            program = sharded_states(program, (category,), {**others, REPLICAS: shards}, stages, of)
        buckets = {
            number: [
                replace(one, over=_first_axis(sizes) if axis == REPLICAS else axis)
                for axis in degrees
                for one in self.buckets(own, self.gradient_dtype, self.bucket, axis)
            ]
            for number, own in stages.items()
        }
        in_backward = self.overlap or every
        buckets = buckets if in_backward else after_backward(program, buckets)
        reduction = self.reduction if in_backward else flattened(self.reduction)
        ranks = {**degrees, GRADIENTS: sizes.gradients, OPTIMIZER: sizes.optimizer}
        program = reduce_gradients(program, buckets, reduction, ranks, every=every, copies=self.copies)
        if in_backward:
            program = double_buffered(program, stages, self.gradient_dtype, degrees)
        for axis in degrees:
            own = {number: [weights.over(axis) for weights in several] for number, several in stages.items()}
            program = self._with_gathers(program, own, axis)
        norm = STATES if sizes.optimizer > 1 else ""
        return sharded_gradient_norm(program, norm) if norm else program

    def _with_gathers(self, program: Program, own: Mapping[int, Sequence[Weights]], axis: str) -> Program:
        """*program* with the gathers of the weights *own* of the replicas on *axis*: before use, and when updated."""
        width = BYTES[self.model.precision]
        sizes, grouped = self.sizes, axis == REPLICAS
        if sizes.parameters > 1:
            held = {weights.name: weights for several in own.values() for weights in several}
            over = PARAMETERS if grouped else axis
            program = unsharded(
                program, held, width, over, overlap=self.overlap, limits=self.limits, suffix=suffix(axis)
            )
        if sizes.optimizer > sizes.parameters and (grouped or sizes.parameters == 1):
            updated = {number: [weights.trained for weights in several] for number, several in own.items()}
            over = UPDATED if grouped else axis
            program = gathered_after(program, updated, width, over, share=1 / sizes.parameters)
        return program
