"""A linear map with products in 8 or 4 bits; its input, its output and its weights have 16 bits around it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from simulator.kernel import BYTES, Kernel, matmul
from simulator.operation import Operation
from workloads.low_precision.recipe import TENSORWISE, LowPrecision
from workloads.operators.linear import Linear
from workloads.operators.parameter import ParameterTensor

CASTS = Operation("cast to few bits", "elementwise", "linear")


@dataclass(frozen=True)
class ScaledLinear(Linear):
    """A `Linear` by the recipe *low*.

    *input_shards*, *gradient_shards*: each rank casts one of so many shards of the input, or of the gradient of the
    output, and the ranks gather them (sequence parallelism).
    """

    low: LowPrecision = TENSORWISE
    input_shards: int = 1
    gradient_shards: int = 1

    @property
    def operation(self) -> Operation:
        """Beside the products there are the casts of their operands."""
        return CASTS

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weights have copies in few bits, biases have not."""
        gathered = self.low.element_bytes if self.low.stored else None
        every = 2 if self.bias else 1
        return tuple(
            one if place % every else replace(one, copy_bytes=self.low.weight_bytes, gathered_bytes=gathered)
            for place, one in enumerate(super().tensors)
        )

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Casts of the weight and of the input, and the product."""
        product = self._product(samples * self.rows, self.outputs, self.inputs)
        return (*self.low.weights_cast(self.inputs * self.outputs), *self._input_casts(samples), product)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The cast of dy, which also sums the bias gradient, and dx = dy W."""
        again = self.low.weights_cast_again(self.inputs * self.outputs)
        readers = 1 if self.frozen else 2
        casts = self.low.casts(samples * self.rows * self.outputs, self.gradient_shards, products=readers)
        return (*again, *casts, self._product(samples * self.rows, self.inputs, self.outputs))

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """dW = dy^T x, with a further cast of x unless the first one is kept."""
        if self.frozen:
            return ()
        again = () if self.low.keeps_casts else self._input_casts(samples)
        return (*again, self._product(self.outputs, self.inputs, samples * self.rows))

    def kept_bytes(self, samples: int) -> float:
        """Its input, as it was cast or in 16 bits."""
        width = self.low.element_bytes if self.low.keeps_casts else BYTES[self.precision]
        kept = self.keeps_input and not self.frozen
        return samples * self.rows * self.inputs * width / self.kept_share if kept else 0.0

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output, which is cast."""
        if self.frozen:
            return 0.0
        return self.kept_bytes(samples) + samples * self.rows * self.outputs * self.low.element_bytes

    @property
    def gathered_input_bytes(self) -> float:
        """Ranks gather what they have cast."""
        return self.low.gathered_bytes(both=False)

    @property
    def gathered_gradient_bytes(self) -> float:
        """Ranks gather what they have cast, for dx and for dW."""
        return self.low.gathered_bytes(both=True)

    def _product(self, m: int, n: int, k: int) -> Kernel:
        """The rows of both operands are *k* long, the only layout that all GPUs with such products take."""
        return matmul(m, n, k, precision=self.low.scaling.product, rows=(k, k), result=self.precision)

    def _input_casts(self, samples: int) -> tuple[Kernel, ...]:
        return self.low.casts(
            samples * self.rows * self.inputs, self.input_shards, products=1 if self.frozen else self.low.products
        )


def scaled(linear: Linear, low: LowPrecision | None, *, input_shards: int = 1, gradient_shards: int = 1) -> Linear:
    """*linear* by the recipe *low*; unchanged if there is none. Shards as `ScaledLinear` has them."""
    if low is None:
        return linear
    own = {one.name: getattr(linear, one.name) for one in fields(linear)}
    return ScaledLinear(**own, low=low, input_shards=input_shards, gradient_shards=gradient_shards)
