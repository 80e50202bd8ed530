"""The matrix products of the experts of a rank, one launch for all of them.

Each expert multiplies as many rows as it has tokens. A launch of unequal products computes the tiles of all of them in
waves (grouped GEMM: NVIDIA CUTLASS, "examples/24_gemm_grouped"). Rows that do not fill a tile cost a whole one.
"""

from __future__ import annotations

from dataclasses import fields, replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, grouped_matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.low_precision import TENSORWISE, LowPrecision
from clustersim.workloads.operators.operator import ParameterTensor, matrix


@dataclass(frozen=True)
class GroupedLinear:
    """y = x W^T + b of *experts* experts of a rank, from *inputs* to *outputs* features; *splits* as in `Linear`.

    *tokens* are the rows of each expert. *frozen*: as in `Linear`. *random_rows*: tokens are means, and experts take
    all that come; else they have these numbers.
    """

    experts: int
    inputs: int
    outputs: int
    bias: bool
    precision: str
    reduced_over: str
    frozen: bool = False
    random_rows: bool = False

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weight, then bias, of each expert."""
        axes = (self.reduced_over,)
        bias = (ParameterTensor(self.outputs, axes),) if self.bias else ()
        every = (matrix(self.outputs, self.inputs, axes), *bias)
        return tuple(replace(tensor, trainable=not self.frozen) for tensor in every) * self.experts

    def forward(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """One launch."""
        return (self._rows(tokens, self.outputs, self.inputs),) if sum(tokens) else ()

    def backward_input(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """dx = dy W, and the sums of dy for the biases."""
        if not sum(tokens):
            return ()
        product = self._rows(tokens, self.inputs, self.outputs)
        read = sum(tokens) * self.outputs * BYTES[self.precision]
        return (product, memory_bound(read, precision=self.precision)) if self.bias and not self.frozen else (product,)

    def backward_weights(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """dW = dy^T x of each expert."""
        if self.frozen or not sum(tokens):
            return ()
        sides = self.outputs, self.inputs
        every = (float(self.outputs),) * self.experts
        product = grouped_matmul(every, self.inputs, tokens, precision=self.precision, rows=sides)
        return (replace(product, of_weights=True),)

    @property
    def keeps_wide_input(self) -> bool:
        """True if the input is kept as it was given."""
        return True

    def kept_bytes(self, tokens: tuple[float, ...]) -> float:
        """Its input."""
        return 0.0 if self.frozen else sum(tokens) * self.inputs * BYTES[self.precision]

    def weight_bytes(self, tokens: tuple[float, ...]) -> float:
        """Its input and the gradient of its output."""
        return 0.0 if self.frozen else self.kept_bytes(tokens) + sum(tokens) * self.outputs * BYTES[self.precision]

    def _rows(self, tokens: tuple[float, ...], outputs: int, inputs: int) -> Kernel:
        depths = (float(inputs),) * self.experts
        return grouped_matmul(tokens, outputs, depths, precision=self.precision, random_rows=self.random_rows)


@dataclass(frozen=True)
class ScaledGroupedLinear(GroupedLinear):
    """A `GroupedLinear` by the recipe *low*.

    *input_cast*, *gradient_cast*: the input, or the gradient of the output, comes from the dispatch cast along its
    features. A copy along the rows is made of it (DeepSeek-AI 2024, arXiv:2412.19437, section 3.5.2).
    """

    low: LowPrecision = TENSORWISE
    input_cast: bool = False
    gradient_cast: bool = False

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weights have copies in few bits, biases have not."""
        gathered = self.low.element_bytes if self.low.stored else None
        every = 2 if self.bias else 1
        return tuple(
            one if place % every else replace(one, copy_bytes=self.low.weight_bytes, gathered_bytes=gathered)
            for place, one in enumerate(super().tensors)
        )

    def forward(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """Casts of the weights and of the input, and the products."""
        if not sum(tokens):
            return ()
        casts = self._casts(tokens, self.inputs, along=self.input_cast, across=self.low.keeps_casts and not self.frozen)
        weights = self.low.weights_cast(self._weights, self.experts)
        return (*weights, *casts, self._rows(tokens, self.outputs, self.inputs))

    def backward_input(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """The cast of dy, which also sums the gradients of biases, and dx = dy W."""
        if not sum(tokens):
            return ()
        casts = self._casts(tokens, self.outputs, along=self.gradient_cast, across=not self.frozen)
        again = self.low.weights_cast_again(self._weights)
        return (*again, *casts, self._rows(tokens, self.inputs, self.outputs))

    def backward_weights(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """dW = dy^T x of each expert, with a further cast of x unless the first one is kept."""
        if self.frozen or not sum(tokens):
            return ()
        every = (float(self.outputs),) * self.experts
        again = () if self.low.keeps_casts else self._casts(tokens, self.inputs, along=self.input_cast, across=True)
        # rows of operands are as long as an expert has tokens, padded (Megatron-LM, --moe-router-padding-for-fp8)
        product = grouped_matmul(
            every,
            self.inputs,
            tokens,
            precision=self.low.scaling.product,
            rows=(self.outputs, self.inputs),
            result=self.precision,
        )
        return (*again, replace(product, of_weights=True))

    @property
    def keeps_wide_input(self) -> bool:
        """True if it is cast again for the backward pass."""
        return not self.low.keeps_casts

    def kept_bytes(self, tokens: tuple[float, ...]) -> float:
        """Its input, as it was cast or in 16 bits."""
        width = self.low.element_bytes if self.input_cast else self.low.kept_bytes
        return 0.0 if self.frozen else sum(tokens) * self.inputs * width

    def weight_bytes(self, tokens: tuple[float, ...]) -> float:
        """Its input and the gradient of its output, which is cast."""
        return 0.0 if self.frozen else self.kept_bytes(tokens) + sum(tokens) * self.outputs * self.low.element_bytes

    @property
    def _weights(self) -> int:
        return self.experts * self.inputs * self.outputs

    def _casts(self, tokens: tuple[float, ...], features: int, *, along: bool, across: bool) -> tuple[Kernel, ...]:
        """Of rows of *features*: *along* is done already; *across*: the copy for dW is made too."""
        elements = sum(tokens) * features
        if not along:
            return self.low.casts(elements, products=2 if across else 1)
        return (memory_bound(2 * elements * self.low.element_bytes),) if across and self.low.layouts > 1 else ()

    def _rows(self, tokens: tuple[float, ...], outputs: int, inputs: int) -> Kernel:
        return grouped_matmul(
            tokens,
            outputs,
            (float(inputs),) * self.experts,
            precision=self.low.scaling.product,
            rows=(inputs, inputs),
            result=self.precision,
            random_rows=self.random_rows,
        )


def scaled_groups(
    products: GroupedLinear, low: LowPrecision | None, *, input_cast: bool = False, gradient_cast: bool = False
) -> GroupedLinear:
    """*products* by the recipe *low*; unchanged if there is none. What is cast already as of `ScaledGroupedLinear`."""
    if low is None:
        return products
    own = {one.name: getattr(products, one.name) for one in fields(products)}
    return ScaledGroupedLinear(**own, low=low, input_cast=input_cast, gradient_cast=gradient_cast)
