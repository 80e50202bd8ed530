"""The linear maps of a layer, in few bits if its shape has them."""

from __future__ import annotations

from workloads.low_precision.scaled_linear import scaled
from workloads.operators.linear import Linear
from workloads.shape import Shape


def plain_product(shape: Shape, linear: Linear) -> Linear:
    """A product without exchanges."""
    return scaled(linear, shape.low)


def first_product(shape: Shape, linear: Linear) -> Linear:
    """The first product of a block, in few bits if the model has them; its input is gathered from the sequence."""
    return scaled(linear, shape.low, input_shards=shape.cut.sequence_shards)


def second_product(shape: Shape, linear: Linear) -> Linear:
    """The second product of a block; the gradient of its output is gathered from the sequence."""
    return scaled(linear, shape.low, gradient_shards=shape.cut.sequence_shards)
