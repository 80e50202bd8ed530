"""Recomputation by operator: which operators of a layer run again before its backward pass, and what they free.

*By name*, as Megatron-LM's ``--recompute-modules``: the output of an operator is not kept, since it is computed again
from an input that is (core/transformer/transformer_layer.py and multi_latent_attention.py, output-discarding
checkpoints; DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.3). *Every nth matrix product*, as torchtitan's selective
checkpoints by operator with n = 2 (torchtitan, distributed/activation_checkpoint.py): the results of the other products
and of fused attention are saved, and all else of a layer is computed again from these and from the layer's input.
Products in 8 bits are another operator there (``aten._scaled_mm``), whose results are not saved. Activation functions
have a rule of their own (`workloads.operators.saved_activations`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.attentions.core_attention import CoreAttention, FlashAttention
from clustersim.workloads.operators.elementwise import LAYER_NORM, RMS_NORM
from clustersim.workloads.operators.experts.mixture import Mixture
from clustersim.workloads.operators.linear import Linear, SharedInput
from clustersim.workloads.operators.low_precision import ScaledLinear
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.operator_names import Rule
from clustersim.workloads.operators.sharded import ShardedOperator

NORMS = {LAYER_NORM.name, RMS_NORM.name}


Rerun = tuple[Operator, float]
"""An operator whose forward pass runs again, and the bytes a sample that are then not kept."""


def reruns(operators: Sequence[Operator], rule: Rule) -> tuple[Rerun, ...]:
    """What runs again of a layer of *operators*, in order. Raises `ScenarioError` for a mixture by *every*."""
    return tuple(_between_products(operators, rule.every) if rule.every else _named(operators, rule.names))


def _named(operators: Sequence[Operator], names: frozenset[str]) -> Iterator[Rerun]:
    expansion = _expansion(operators) if "mla_up" in names else range(0)
    for place, operator in enumerate(operators):
        following = operators[place + 1] if place + 1 < len(operators) else None
        if "attention" in names and operator.recomputable_forward(1):
            yield (operator, operator.recomputable_bytes(1))
        elif "experts" in names and isinstance(operator, Mixture):
            given = operator.rows * operator.hidden * BYTES[operator.precision]
            yield (operator, operator.kept_bytes(1) - given)
        elif operator.operation.name in NORMS:
            # the product behind it keeps what a norm makes; what norms of queries and keys make nobody keeps as it is
            takes = following is not None and following.operation.name not in NORMS
            freed = min(operator.kept_bytes(1), following.kept_bytes(1)) if following and takes else 0.0
            if "norm" in names and freed:
                yield (operator, freed)
        elif place in expansion:
            core = operators[expansion.stop]
            last = place == expansion.stop - 1
            yield (operator, core.kept_bytes(1) - core.recomputable_bytes(1) if last else 0.0)


def _expansion(operators: Sequence[Operator]) -> range:
    """The places of what makes queries, keys and values from small vectors; norms among them run by their own name."""
    core = next((place for place, one in enumerate(operators) if _of_latent_vectors(_whole(one))), None)
    if core is None:
        return range(0)
    products = [place for place in range(core) if isinstance(_whole(operators[place]), Linear)]
    # without a small vector of queries their product comes before the small one of keys and values
    return range(products[-2] if len(products) > 1 and products[-1] - products[-2] == 2 else products[-1], core)


def _of_latent_vectors(operator: Operator) -> bool:
    return isinstance(operator, FlashAttention) and operator.value_size > 0


def _between_products(operators: Sequence[Operator], every: int) -> Iterator[Rerun]:
    if any(isinstance(_whole(operator), Mixture) for operator in operators):
        raise ScenarioError("every counts the matrix products of a dense layer, and this one has experts")
    count, kept = 0, operators[0].kept_bytes(1)
    found: list[Rerun] = []
    last = max(place for place, one in enumerate(operators) if _products(one))
    for place, operator in enumerate(operators[:last]):
        if isinstance(_whole(operator), CoreAttention):
            # its output is what the next product keeps
            kept += operator.recomputable_bytes(1) + operators[place + 1].kept_bytes(1)
            continue
        again = []
        for product in _products(operator):
            wide = not isinstance(product, ScaledLinear)
            count += wide
            if wide and count % every:
                kept += product.rows * product.outputs * BYTES[product.precision]
            else:
                again.append(product)
        if again:
            found += [(_like(operator, product), 0.0) for product in again]
        elif not _products(operator):
            found.append((operator, 0.0))
    freed = sum(operator.kept_bytes(1) for operator in operators) - kept
    yield (found[0][0], max(0.0, freed))
    yield from found[1:]


def _whole(operator: Operator) -> Operator:
    """The operator itself, or what a tensor-parallel rank has of it."""
    return operator.share if isinstance(operator, ShardedOperator) else operator


def _products(operator: Operator) -> tuple[Linear, ...]:
    """The products of *operator* as their parts are in a model of torch: one for each weight."""
    own = _whole(operator)
    every = own.products if isinstance(own, SharedInput) else (own,) if isinstance(own, Linear) else ()
    return tuple(part for one in every for part in (one.apart() or (one,)))


def _like(operator: Operator, product: Linear) -> Operator:
    """*product* alone, with the exchanges of *operator*."""
    return replace(operator, share=product) if isinstance(operator, ShardedOperator) else product
