"""Linear maps side by side, as a parallel transformer block has them: of one input, or summed into one output.

y = x + Attention(LN(x)) + MLP(LN(x)) (Wang and Komatsuzaki 2021, GPT-J; Chowdhery et al. 2022, "PaLM",
arXiv:2204.02311, section 2). A tensor-parallel group exchanges the shared input and the summed output once for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel, memory_bound
from simulator.operation import Operation
from workloads.operators.linear import Linear
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor

SUM = Operation("add", "elementwise", "linear")


@dataclass(frozen=True)
class SideBySide(Operator):
    """*products* of as many rows each, one kernel each; a further kernel adds two results up."""

    products: tuple[Linear, ...]

    @property
    def operation(self) -> Operation:
        """Beside the products there are sums."""
        return SUM

    @property
    def rows(self) -> int:
        """Rows a sample."""
        return self.products[0].rows

    @property
    def kept_share(self) -> int:
        """That of all products."""
        return self.products[0].kept_share

    @property
    def precision(self) -> str:
        """That of all products."""
        return self.products[0].precision

    @property
    def gathered_input_bytes(self) -> float:
        """That of all products."""
        return self.products[0].gathered_input_bytes

    @property
    def gathered_gradient_bytes(self) -> float:
        """That of all products."""
        return self.products[0].gathered_gradient_bytes

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Those of the products, in order."""
        return tuple(tensor for product in self.products for tensor in product.tensors)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The products, in order."""
        return tuple(kernel for product in self.products for kernel in product.named(product.forward(samples)))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradient of each input, last product first."""
        products = self.products[::-1]
        return tuple(kernel for one in products for kernel in one.named(one.backward_input(samples)))

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """The gradient of each weight, last product first."""
        products = self.products[::-1]
        return tuple(kernel for one in products for kernel in one.named(one.backward_weights(samples)))

    def kept_beside_input(self, samples: int) -> float:
        """The sum over the products."""
        return sum(product.kept_beside_input(samples) for product in self.products)

    def _added(self, samples: int, features: int) -> tuple[Kernel, ...]:
        """Sums of tensors of *features* a row: two are read, one is written."""
        nbytes = 3 * samples * self.rows * features * BYTES[self.precision]
        return (memory_bound(nbytes, precision=self.precision, operation=SUM),) * (len(self.products) - 1)


@dataclass(frozen=True)
class SharedInput(SideBySide):
    """Products of one input, which is kept once; the backward pass sums its gradients."""

    @property
    def inputs(self) -> int:
        """Features of the input."""
        return self.products[0].inputs

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradient of the input from each product, and their sum."""
        return (*super().backward_input(samples), *self._added(samples, self.inputs))

    def kept_bytes(self, samples: int) -> float:
        """The input, if any product needs it, and what each keeps beside it."""
        beside = [product.kept_beside_input(samples) for product in self.products]
        every = (product.kept_bytes(samples) - own for product, own in zip(self.products, beside, strict=True))
        return max(every) + sum(beside)

    def weight_bytes(self, samples: int) -> float:
        """The input, and the gradient of each output."""
        own = (product.weight_bytes(samples) - product.kept_bytes(samples) for product in self.products)
        return self.kept_bytes(samples) + sum(own)


@dataclass(frozen=True)
class SummedOutput(SideBySide):
    """Products summed into one output, whose gradient is that of each summand."""

    @property
    def outputs(self) -> int:
        """Features of the output."""
        return self.products[0].outputs

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The products, and their sum."""
        return (*super().forward(samples), *self._added(samples, self.outputs))

    def kept_bytes(self, samples: int) -> float:
        """The input of each product."""
        return sum(product.kept_bytes(samples) for product in self.products)

    def weight_bytes(self, samples: int) -> float:
        """The input of each product, and the gradient of the output."""
        own = (product.weight_bytes(samples) - product.kept_bytes(samples) for product in self.products)
        return self.kept_bytes(samples) + max(own)
