"""The feed-forward network of a layer, made from the shape: an MLP, or a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from clustersim.workloads.architectures.layer_parts import (
    Parts,
    casts,
    first_product,
    norm_operator,
    plain_product,
    second_product,
)
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.operators.elementwise import Elementwise, RecomputedActivation, gelu, saving, swiglu
from clustersim.workloads.operators.expert_routing import Router
from clustersim.workloads.operators.experts import Experts
from clustersim.workloads.operators.grouped_linear import GroupedLinear, scaled_groups
from clustersim.workloads.operators.linear import Linear, SharedInput
from clustersim.workloads.operators.low_precision import BLOCKWISE
from clustersim.workloads.operators.mixture_of_experts import Mixture
from clustersim.workloads.operators.operator import Operator, parameter_tensors
from clustersim.workloads.operators.sharded import column_parallel, on_the_sequence, second_parallel, summed_over

GATE_AND_UP = 2
"""Splits of the product before a gated activation; that of attention has three."""


def mlp_operators(shape: Shape) -> tuple[Operator, ...]:
    """The operators of the MLP, between its norm and its residual sum."""
    first, inner, second = mlp_parts(shape)
    before = casts(shape, max(1, len(first.splits)))
    return (*before, _columns(shape, first), *inner, second_parallel(second, shape.cut))


def mixture_operators(shape: Shape, experts: Experts, number: int) -> tuple[Operator, ...]:
    """The operators of a mixture of *experts* with the load of that *number*, between its norm and its residual sum."""
    made = _in_latent_space(shape, experts, _mixture(shape, experts, number))
    # Gemma 4: norms of what experts take and give, and of what the dense network beside them gives
    return *casts(shape, 1), *made, *(norm_operator(shape),) * (3 * experts.own_norms)


def _columns(shape: Shape, first: Linear) -> Operator:
    """The first product of a block; of a gated activation two products if the software has the gate apart."""
    if shape.software.separate_gate and len(first.splits) == GATE_AND_UP:
        return column_parallel(SharedInput(first.apart()), shape.cut, summed_first=False)
    return column_parallel(first, shape.cut)


def mlp_parts(shape: Shape) -> Parts:
    """The product that widens, the activation, the product that narrows."""
    precision, rows, gated = shape.precision, shape.seq_length, shape.mlp.gated
    width = shape.mlp.ffn_hidden_size // shape.cut.ranks
    up = Linear(
        rows,
        shape.hidden_size,
        width * (2 if gated else 1),
        shape.mlp.bias,
        precision,
        splits=(width, width) if gated else (),
        kept_share=shape.kept_share,
    )
    between = _activation(shape, rows * width)
    keeps = not isinstance(between, RecomputedActivation)
    down = Linear(rows, width, shape.hidden_size, shape.mlp.bias, precision, keeps_input=keeps)
    first = first_product(shape, up, {"gate": width, "up": width} if gated else {"up": width})
    return first, (between,), second_product(shape, down, {"down": shape.hidden_size})


def _activation(shape: Shape, elements: int) -> Elementwise:
    rule, precision = shape.saved, shape.activation_precision
    if shape.lora and not {"down"} & {*shape.lora.targets}:
        # no weight gradient needs the output
        rule = replace(rule, recompute=False)
    if shape.mlp.gated:
        gated = swiglu(elements, precision, fused=shape.fuses("swiglu"), separate=shape.software.separate_gate)
        return saving(gated, rule, precision)
    return saving(gelu_operator(shape, elements), rule, precision)


def gelu_operator(shape: Shape, elements: int) -> Elementwise:
    """An activation that is not gated, of so many *elements*."""
    written_out = shape.mlp.activation == "gelu_new" and not shape.fuses("gelu_new")
    made = gelu(elements, shape.activation_precision, written_out=written_out, autocast=shape.software.autocast)
    if shape.mlp.activation == "xielu":
        # slopes on either side of zero, which all ranks share (Huang and Schlag 2024, arXiv:2411.13010)
        slopes = parameter_tensors(1, 1)
        return replace(made, parameters=summed_over(slopes, shape.cut.over) if shape.cut.ranks > 1 else slopes)
    return made


Halves = tuple[tuple[Operator, ...], tuple[Operator, ...]]
"""The operators of a feed-forward network up to its activation, and its second product."""


def _mixture(shape: Shape, experts: Experts, number: int) -> Mixture:
    """The block with the load of that *number*."""
    cut = shape.cut
    rows, width = shape.own_rows, experts.width // experts.cut.tensor
    hidden = experts.latent or shape.hidden_size
    bias, precision = shape.mlp.bias, shape.precision
    score = Linear(rows, shape.hidden_size, experts.count, experts.router_bias, precision)
    gate = (Linear(rows, shape.hidden_size, 1, False, precision),) if experts.shared_gate else ()
    # of the features of the router's input and of each expert's result
    scales = parameter_tensors(shape.hidden_size, experts.count) if experts.own_norms else ()
    first, second = _shared_expert(shape, experts)
    reduced = experts.cut.reduced_over
    # what is sent in 8 bits has a scale for each 128 features, as blockwise products take it
    sent_cast = experts.cut.sent_fp8 and shape.low is not None and shape.low.recipe == BLOCKWISE
    counted = not experts.capacity_factor
    doubled = width * (2 if shape.mlp.gated else 1)
    up = GroupedLinear(experts.local, hidden, doubled, bias, precision, reduced, random_rows=counted)
    down = GroupedLinear(experts.local, width, hidden, bias, precision, reduced, random_rows=counted)
    return Mixture(
        experts,
        rows,
        hidden,
        Router(score, experts.topk, experts.aux_loss, shape.fuses("router")),
        (*on_the_sequence(score, cut).tensors, *scales),
        scaled_groups(up, shape.low, input_cast=sent_cast),
        _activation(shape, width),
        scaled_groups(down, shape.low, gradient_cast=sent_cast),
        (tuple(on_the_sequence(one, cut) for one in gate) + first, second),
        number,
        sequence_cut=cut.sequence or cut.ranks == 1,
        summed=cut.over if cut.ranks > 1 and not cut.sequence else "",
        precision=precision,
        fused=shape.fuses("permute"),
        sent_cast=sent_cast,
        kept_fp8=shape.saved.experts_fp8,
    )


def _in_latent_space(shape: Shape, experts: Experts, made: Operator) -> tuple[Operator, ...]:
    """*made*, the mixture, between the products to and from its latent features, which every rank has whole.

    Megatron-LM, core/transformer/moe/moe_layer.py, ``fc1_latent_proj`` and ``fc2_latent_proj``: tokens are sent to
    experts after the first one, and come back before the second.
    """
    if not experts.latent:
        return (made,)
    rows = shape.own_rows
    sides = (shape.hidden_size, experts.latent), (experts.latent, shape.hidden_size)
    first, second = (plain_product(shape, Linear(rows, *side, False, shape.precision)) for side in sides)
    return on_the_sequence(first, shape.cut), made, on_the_sequence(second, shape.cut)


def _shared_expert(shape: Shape, experts: Experts) -> Halves:
    """The halves of the shared expert, an MLP of its own width; none if there is none."""
    if not experts.shared:
        return (), ()
    own = replace(shape, mlp=replace(shape.mlp, ffn_hidden_size=experts.shared))
    first, inner, second = mlp_parts(own)
    return (_columns(shape, first), *inner), (second_parallel(second, shape.cut),)
