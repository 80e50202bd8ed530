"""An operator is one step of a layer, such as a linear map or a norm. A parameter tensor is what it learns. Settings of
a scenario name operators.

In each phase it has one or more segments: runs of kernels with the exchanges around them. Counts are of one sample, on
one rank. `workloads.operators.lowering` turns segments into ops.

Words of settings about operators: those that a stack fuses, those that run again, and how layers are divided.

A software stack names the operators that it runs as one kernel each. Compositions also keep more for the backward pass.
Layer norm, GELU of one operator, dropout and sums are one kernel in torch itself.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Literal, get_args

from clustersim.simulator.hardware.kernel import Kernel, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import PerPeer, scaled_bytes
from clustersim.simulator.schedule.records import changed

SHIFT = "shift"
"""The kind of a ring exchange: each rank sends to the rank *distance* further on, and receives from the one before."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A communication of *kind* over the axis *over*: a collective of `COLLECTIVES`, or `SHIFT`.

    *nbytes*: of a collective the full vector, of a shift what one rank sends. *divisible*: the segment is a product,
    and a share of the exchange may run beside it, piece by piece; in a backward pass the weight gradient of the product
    is the next segment. *distance*: on the axis, of a shift. *per_peer*: bytes for each coordinate, of an all-to-all.
    *root*: a coordinate, of a broadcast or a reduce. *of_weights*: as many bytes for any number of samples. *wraps*: a
    shift from the last coordinate goes to the first one; otherwise the last one sends nothing.
    """

    kind: str
    nbytes: float
    over: str
    divisible: bool = False
    distance: int = 1
    per_peer: PerPeer | None = None
    root: int = 0
    of_weights: bool = False
    wraps: bool = True

    def times(self, factor: float) -> Exchange:
        """The exchange with its bytes multiplied by *factor*."""
        return changed(self, nbytes=self.nbytes * factor, per_peer=scaled_bytes(self.per_peer, factor))


@dataclass(frozen=True, slots=True)
class Segment:
    """*kernels* in order, with the exchanges *before* the first and *after* the last kernel.

    Exchanges *within* begin together with the kernels. The next segment waits for the kernels and for all exchanges.
    """

    kernels: tuple[Kernel, ...]
    before: tuple[Exchange, ...] = ()
    within: tuple[Exchange, ...] = ()
    after: tuple[Exchange, ...] = ()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges of the segment."""
        return self.before + self.within + self.after


class Operator(ABC):
    """One operator. A subclass defines what it has; the defaults here stand for nothing."""

    @property
    def operation(self) -> Operation:
        """What its kernels do that are no products and name no operation themselves. Default: named as the class."""
        return _elementwise(type(self).__name__)

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Its parameter tensors, in order of registration."""
        return ()

    @property
    def modules(self) -> int:
        """Modules of torch that hold its parameters: one for each matrix, one for a norm."""
        return max(1, sum(1 for tensor in self.tensors if tensor.rows)) if self.tensors else 0

    @property
    def active_parameters(self) -> int:
        """How many of its parameters one token uses."""
        return sum(tensor.count for tensor in self.tensors)

    @abstractmethod
    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of the forward pass."""

    @abstractmethod
    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of the gradient of its input, and of those weight gradients that are sums (biases, norms)."""

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """The matrix products of the weight gradients; only these can be delayed in a split backward pass.

        Qi et al. delay the same ones (sail-sg/zero-bubble-pipeline-parallelism, tensor_parallel/layers.py).
        """
        return ()

    def kept_bytes(self, samples: int) -> float:
        """Bytes kept from the forward pass to the backward pass."""
        return 0.0

    @property
    def keeps_inputs(self) -> bool:
        """True if all that it keeps are its inputs: its forward pass need not run to have them."""
        return False

    def transient_bytes(self, phase: str, samples: int) -> float:
        """Bytes held beside `kept_bytes` while *phase* (F or I) runs, and no longer."""
        return 0.0

    def weight_bytes(self, samples: int) -> float:
        """Bytes that `backward_weights` needs, held from `backward_input` on in a split backward pass."""
        return 0.0

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """The forward kernels that selective recomputation runs again."""
        return ()

    def recomputable_bytes(self, samples: int) -> float:
        """Bytes that selective recomputation does not keep."""
        return 0.0

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """Its kernels in *phase* (F, I or W) with the exchanges around them."""
        kernels = {"F": self.forward, "I": self.backward_input, "W": self.backward_weights}[phase]
        return (Segment(self.named(kernels(samples))),)

    def named(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """*kernels*, each with its operation; one that has its own keeps it."""
        if all(kernel.operation for kernel in kernels):
            return kernels
        own = self.operation
        return tuple(kernel if kernel.operation else changed(kernel, operation=_of(kernel, own)) for kernel in kernels)


def _of(kernel: Kernel, own: Operation) -> Operation:
    """The operation of *kernel*, one of an operator whose other kernels do *own*."""
    if kernel.attention:
        return _part("fused attention", "attention", own.operator)
    return _part("matmul", "product", own.operator) if kernel.flops else own


@lru_cache
def _elementwise(class_name: str) -> Operation:
    return Operation(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", class_name).lower(), "elementwise")


@lru_cache
def _part(name: str, kind: str, operator: str) -> Operation:
    return Operation(name, kind, operator)


REPLICAS = "dp"
"""The axis that joins the replicas of the model, on the mesh of every training step."""


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """*count* elements on one rank.

    *reduced_over*: the axes over which its gradient is summed, one reduction each, in this order. The last one is that
    of data parallelism. A joint reduction over several axes names their joint axis (`Mesh.joint`). *copy_bytes*: bytes
    of an element that a rank holds beside it all step, in fewer bits; below 0 if they take its place. *gathered_bytes*:
    those that ranks gather, if not in the precision of the model. *trainable*: false if it is frozen, so that it has
    neither a gradient nor optimizer states. *rows*: of a matrix, its first dimension, so that ``view(rows, -1)`` has
    two; 0 if it is none. *hidden*: it is a matrix between hidden features, neither an embedding nor that of the logits.
    """

    count: int
    reduced_over: tuple[str, ...] = (REPLICAS,)
    copy_bytes: float = 0.0
    gathered_bytes: float | None = None
    trainable: bool = True
    rows: int = 0
    hidden: bool = False

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.count // (self.rows or 1)

    def gathered(self, width: float) -> float:
        """Bytes of all its elements as ranks gather them; *width*: those of an element in the model's precision."""
        return self.count * (width if self.gathered_bytes is None else self.gathered_bytes)


def parameter_tensors(*counts: int) -> tuple[ParameterTensor, ...]:
    """A tensor for each of *counts*, its gradient summed over the replicas only.

    >>> parameter_tensors(768, 768)[0].count
    768
    """
    return tuple(map(ParameterTensor, counts))


def matrix(
    rows: int, columns: int, reduced_over: tuple[str, ...] = (REPLICAS,), *, hidden: bool = True, trainable: bool = True
) -> ParameterTensor:
    """A tensor with a first dimension of *rows*, and *columns* elements for each.

    >>> matrix(4096, 1024).count
    4194304
    """
    return ParameterTensor(rows * columns, reduced_over, trainable=trainable, rows=rows, hidden=hidden)


Fusible = Literal[
    "batch_norm",
    "bias_dropout_add",
    "block_sum",
    "cross_entropy",
    "gelu_new",
    "optimizer",
    "permute",
    "rms_norm",
    "rope",
    "router",
    "softmax",
    "swiglu",
]
"""Operators that some stacks fuse and others do not. *batch_norm*: with the activation and the sum that follow it.
*block_sum*: of the results of ring attention, block by block; *permute*: the copies of tokens for their experts, and
the weighted sum of the results; *router*: the choice of experts and the loss for equal loads."""

FUSIBLE: tuple[str, ...] = get_args(Fusible)

Fused = bool | frozenset[str]
"""All operators (true), none of them (false), or those named."""


def fuses(fused: Fused, operator: str) -> bool:
    """Return whether *fused* includes *operator*, one of `FUSIBLE`.

    >>> fuses(True, "rope"), fuses(frozenset({"swiglu"}), "rope")
    (True, False)
    """
    assert operator in FUSIBLE, operator
    return fused if isinstance(fused, bool) else operator in fused


Recomputable = Literal["attention", "experts", "mla_up", "mlp", "norm", "swiglu"]
"""*attention*: core attention; *experts*: a mixture with its exchanges; *mla_up*: the products of latent attention that
make queries, keys and values, with the rotation; *mlp*: dense feed-forward networks; *norm*: norms whose output a
product keeps; *swiglu*: activation functions of feed-forward networks."""

RECOMPUTABLE: tuple[str, ...] = get_args(Recomputable)


@dataclass(frozen=True, slots=True)
class Rule:
    """Operators by *names*, or each *every*-th product of a layer and all that is no product; 0: by name."""

    names: frozenset[str] = frozenset()
    every: int = 0


Way = Literal["domain", "model", "batch"]
"""How ranks that share every micro-batch divide a layer of a convolutional model."""
