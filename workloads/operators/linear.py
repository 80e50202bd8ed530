"""Linear maps, the matrix products of a layer: alone, or several side by side; and parts of them.

Maps side by side have one input or are summed into one output, as in a parallel block, y = x + Attention(LN(x)) +
MLP(LN(x)) (Wang and Komatsuzaki 2021, GPT-J; Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 2). A
tensor-parallel group exchanges the shared input and the summed output once for both.
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.operator import Operator, ParameterTensor, matrix

BIAS_GRADIENT = Operation("bias gradient", "elementwise", "linear")


@dataclass(frozen=True)
class Linear(Operator):
    """y = x W^T + b over *rows* rows a sample, from *inputs* to *outputs* features; one kernel adds the bias too.

    *splits*: the outputs of each weight tensor if there are several (query, key and value). *shared*: the weight
    belongs to another layer and is not counted. *kept_share*: it keeps one part in so many of its input (sequence
    parallelism keeps a shard and gathers it again). *keeps_input*: false if another operator keeps it. *frozen*: its
    parameters have no gradients, so that it keeps nothing; that of its input passes through. *input_held*: its input
    stays all the same, for the operator that made it, and counts here. *hidden*: false if it makes the classes of a
    head. *padded*: its sides are padded where they are not aligned; the zeros are not counted.
    """

    rows: int
    inputs: int
    outputs: int
    bias: bool = True
    precision: str = "fp32"
    splits: tuple[int, ...] = ()
    shared: bool = False
    kept_share: int = 1
    keeps_input: bool = True
    frozen: bool = False
    input_held: bool = False
    hidden: bool = True
    padded: bool = False

    @property
    def operation(self) -> Operation:
        """Beside the products there is the sum of the bias gradient."""
        return BIAS_GRADIENT

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weight, then bias, of each split."""
        made: list[ParameterTensor] = []
        for outputs in self.splits or (self.outputs,):
            if not self.shared:
                made.append(matrix(outputs, self.inputs, hidden=self.hidden))
            if self.bias:
                made.append(ParameterTensor(outputs))
        return tuple(replace(tensor, trainable=False) for tensor in made) if self.frozen else tuple(made)

    def apart(self) -> tuple[Linear, ...]:
        """A product for each of the *splits*."""
        return tuple(replace(self, outputs=outputs, splits=()) for outputs in self.splits)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """One product."""
        return (self._multiplied(samples * self.rows, self.outputs, self.inputs),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """dx = dy W, and the bias gradient, a sum over the rows of dy."""
        product = self._multiplied(samples * self.rows, self.inputs, self.outputs)
        if not self.bias or self.frozen:
            return (product,)
        read = samples * self.rows * self.outputs * BYTES[self.precision]
        return product, memory_bound(read, precision=self.precision)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """dW = dy^T x."""
        if self.frozen:
            return ()
        sides = self.outputs, self.inputs
        return (replace(self._multiplied(*sides, samples * self.rows, rows=sides), of_weights=True),)

    def kept_bytes(self, samples: int) -> float:
        """Its input."""
        nbytes = samples * self.rows * self.inputs * BYTES[self.precision] / self.kept_share
        return nbytes if self.input_held or (self.keeps_input and not self.frozen) else 0.0

    def _multiplied(self, m: int, n: int, k: int, rows: tuple[int, int] | None = None) -> Kernel:
        product = matmul(m, n, k, precision=self.precision, rows=rows)
        return replace(product, aligned=True) if self.padded else product

    def kept_beside_input(self, samples: int) -> float:
        """Bytes of what it keeps beside its input."""
        return 0.0

    @property
    def keeps_inputs(self) -> bool:
        """True."""
        return True

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output."""
        if self.frozen:
            return 0.0
        return self.kept_bytes(samples) + samples * self.rows * self.outputs * BYTES[self.precision]

    @property
    def stream_precision(self) -> str:
        """The precision of its input and output, as the operators around it see them."""
        return self.precision

    @property
    def gathered_input_bytes(self) -> float:
        """Bytes of an element of its input, where ranks gather it."""
        return BYTES[self.precision]

    @property
    def gathered_gradient_bytes(self) -> float:
        """Bytes of an element of the gradient of its output, where ranks gather it."""
        return BYTES[self.precision]


SUM = Operation("add", "elementwise", "linear")


@dataclass(frozen=True)
class SummedProducts(Operator):
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

    @property
    def modules(self) -> int:
        """The sum over the products."""
        return sum(product.modules for product in self.products)

    def kept_beside_input(self, samples: int) -> float:
        """The sum over the products."""
        return sum(product.kept_beside_input(samples) for product in self.products)

    def _added(self, samples: int, features: int) -> tuple[Kernel, ...]:
        """Sums of tensors of *features* a row: two are read, one is written."""
        nbytes = 3 * samples * self.rows * features * BYTES[self.products[0].stream_precision]
        return (memory_bound(nbytes, precision=self.precision, operation=SUM),) * (len(self.products) - 1)


@dataclass(frozen=True)
class SharedInput(SummedProducts):
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
class SummedOutput(SummedProducts):
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
