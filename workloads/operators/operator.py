"""An operator is one step of a layer, such as a linear map or a norm.

In each phase it has one or more segments: runs of kernels with the exchanges around them. Counts are of one sample, on
one rank. `workloads.operators.lowering` turns segments into ops.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache

from clustersim.simulator.hardware.kernel import Kernel, Operation
from clustersim.simulator.schedule.ops import PerPeer, scaled_bytes
from clustersim.workloads.operators.parameter import ParameterTensor

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
        return replace(self, nbytes=self.nbytes * factor, per_peer=scaled_bytes(self.per_peer, factor))


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
        return tuple(kernel if kernel.operation else replace(kernel, operation=_of(kernel, own)) for kernel in kernels)


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
