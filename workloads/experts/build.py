"""The mixture of experts of one layer, from the shape of its model."""

from __future__ import annotations

from collections.abc import Callable

from workloads.experts.mixture import Mixture
from workloads.experts.products import GroupedLinear, scaled_groups
from workloads.experts.router import Router
from workloads.experts.sizes import Experts
from workloads.low_precision.recipe import BLOCKWISE
from workloads.operators.elementwise import Elementwise
from workloads.operators.fusion import fuses
from workloads.operators.linear import Linear
from workloads.operators.operator import Operator
from workloads.operators.sharded import on_the_sequence
from workloads.shape import Shape

Halves = tuple[tuple[Operator, ...], tuple[Operator, ...]]
"""The operators of a feed-forward network up to its activation, and its second product."""


def mixture(
    shape: Shape, experts: Experts, number: int, shared: Halves, activation: Callable[[int], Elementwise]
) -> Mixture:
    """The block with the load of that *number*; *shared*: the halves of the shared expert.

    *activation*: of so many elements.
    """
    cut = shape.cut
    rows, width = shape.seq_length // cut.sequence_shards, experts.width // experts.cut.tensor
    bias, precision = shape.add_bias_linear, shape.precision
    score = Linear(rows, shape.hidden_size, experts.count, experts.router_bias, precision)
    gate = (Linear(rows, shape.hidden_size, 1, False, precision),) if experts.shared_gate else ()
    first, second = shared
    reduced = experts.cut.reduced_over
    # what is sent in 8 bits has a scale for each 128 features, as blockwise products take it
    sent_cast = experts.cut.sent_fp8 and shape.low is not None and shape.low.recipe == BLOCKWISE
    counted = not experts.capacity_factor
    doubled = width * (2 if shape.gated else 1)
    up = GroupedLinear(experts.local, shape.hidden_size, doubled, bias, precision, reduced, random_rows=counted)
    down = GroupedLinear(experts.local, width, shape.hidden_size, bias, precision, reduced, random_rows=counted)
    return Mixture(
        experts,
        rows,
        shape.hidden_size,
        Router(score, experts.topk, experts.aux_loss, fuses(shape.fused, "router")),
        on_the_sequence(score, cut).tensors,
        scaled_groups(up, shape.low, input_cast=sent_cast),
        activation(width),
        scaled_groups(down, shape.low, gradient_cast=sent_cast),
        (tuple(on_the_sequence(one, cut) for one in gate) + first, second),
        number,
        sequence_cut=cut.sequence or cut.ranks == 1,
        summed=cut.over if cut.ranks > 1 and not cut.sequence else "",
        precision=precision,
        fused=fuses(shape.fused, "permute"),
        sent_cast=sent_cast,
        kept_fp8=shape.saved.experts_fp8,
    )
