"""A linear map with products in 8 or 4 bits; its input, its output and its weights have 16 bits around it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from simulator.kernel import BYTES, Kernel, matmul
from workloads.low_precision.recipe import TENSORWISE, LowPrecision
from workloads.operators.linear import Linear
from workloads.operators.parameter import ParameterTensor


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
        return (*self._weight_casts(), *self._input_casts(samples), product)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The cast of dy, which also sums the bias gradient, and dx = dy W."""
        again = () if self.low.keeps_casts else self._weight_casts_again()
        casts = self.low.casts(samples * self.rows * self.outputs, self.gradient_shards)
        return (*again, *casts, self._product(samples * self.rows, self.inputs, self.outputs))

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """dW = dy^T x, with a further cast of x unless the first one is kept."""
        again = () if self.low.keeps_casts else self._input_casts(samples)
        return (*again, self._product(self.outputs, self.inputs, samples * self.rows))

    def kept_bytes(self, samples: int) -> float:
        """Its input, as it was cast or in 16 bits."""
        width = self.low.element_bytes if self.low.keeps_casts else BYTES[self.precision]
        return samples * self.rows * self.inputs * width / self.kept_share if self.keeps_input else 0.0

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output, which is cast."""
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

    @property
    def _products(self) -> int:
        """How many products read what is cast: the one of the pass, or those of both passes if it is kept."""
        return 2 if self.low.keeps_casts else 1

    def _input_casts(self, samples: int) -> tuple[Kernel, ...]:
        return self.low.casts(samples * self.rows * self.inputs, self.input_shards, products=self._products)

    def _weight_casts(self) -> tuple[Kernel, ...]:
        """Of the forward pass, the mean over the passes of a step.

        Weights that are stored or gathered in few bits have been cast by shards. If casts are kept they are transposed.
        """
        elements, share = self.inputs * self.outputs, self.low.weight_casts
        if self.low.stored:
            casts = self.low.transposed(elements) if self.low.keeps_casts else ()
        else:
            casts = self.low.casts(elements, products=self._products)
        return tuple(replace(kernel, nbytes=kernel.nbytes * share, launches=round(share)) for kernel in casts)

    def _weight_casts_again(self) -> tuple[Kernel, ...]:
        """Of the backward pass, if casts are not kept."""
        elements = self.inputs * self.outputs
        return self.low.transposed(elements) if self.low.stored else self.low.casts(elements, products=1)


def scaled(linear: Linear, low: LowPrecision | None, *, input_shards: int = 1, gradient_shards: int = 1) -> Linear:
    """*linear* by the recipe *low*; unchanged if there is none. Shards as `ScaledLinear` has them."""
    if low is None:
        return linear
    own = {one.name: getattr(linear, one.name) for one in fields(linear)}
    return ScaledLinear(**own, low=low, input_shards=input_shards, gradient_shards=gradient_shards)
