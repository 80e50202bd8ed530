"""A rank's part of a product on a grid."""

from __future__ import annotations

from dataclasses import replace

from workloads.operators.linear import Linear
from workloads.operators.operator import Operator
from workloads.operators.side_by_side import SharedInput


def as_linear(product: Operator) -> Linear:
    """*product* as one linear map; products of one input (a gate apart) become one with several weight tensors."""
    if isinstance(product, SharedInput):
        outputs = tuple(one.outputs for one in product.products)
        return replace(product.products[0], outputs=sum(outputs), splits=outputs)
    assert isinstance(product, Linear), f"a {type(product).__name__} cannot be cut over a grid"
    return product


def with_inputs(product: Linear, parts: int) -> Linear:
    """*product* of one of *parts* parts of its inputs."""
    return replace(product, inputs=product.inputs // parts)


def with_outputs(product: Linear, parts: int) -> Linear:
    """*product* with one of *parts* parts of its outputs."""
    return replace(product, outputs=product.outputs // parts, splits=tuple(out // parts for out in product.splits))
