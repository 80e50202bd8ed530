"""The linear maps of a layer: in few bits, or frozen with adapters, if its shape has them."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.adapters.build import with_adapters
from workloads.low_precision.scaled_linear import scaled
from workloads.operators.fusion import fuses
from workloads.operators.linear import Linear
from workloads.shape import Shape


def plain_product(shape: Shape, linear: Linear) -> Linear:
    """A product without exchanges."""
    return _adapted(shape, scaled(linear, shape.low), {})


def first_product(shape: Shape, linear: Linear, sizes: Mapping[str, int] | None = None) -> Linear:
    """The first product of a block; its input is gathered from the sequence. *sizes*: outputs by adapter's target."""
    own = scaled(linear, shape.low, input_shards=_shards(shape))
    return _adapted(shape, own, sizes or {})


def second_product(shape: Shape, linear: Linear, sizes: Mapping[str, int] | None = None) -> Linear:
    """The second product of a block; the gradient of its output is gathered from the sequence."""
    own = scaled(linear, shape.low, gradient_shards=_shards(shape))
    return _adapted(shape, own, sizes or {}, by_rows=True)


def _shards(shape: Shape) -> int:
    """Shards of a gathered tensor that are cast before the gather; adapters want what is gathered in 16 bits."""
    return 1 if shape.lora else shape.cut.sequence_shards


def _adapted(shape: Shape, linear: Linear, sizes: Mapping[str, int], *, by_rows: bool = False) -> Linear:
    fused = fuses(shape.fused, "bias_dropout_add")
    return with_adapters(linear, shape.lora, sizes, shape.cut, fused=fused, by_rows=by_rows)
