"""An operator is one step of a layer: a linear map, a normalisation, an activation.

Counts are of one sample, on one rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from simulator.kernel import Kernel
from workloads.operators.parameter import ParameterTensor
from workloads.operators.segment import Segment


class Operator(ABC):
    """One operator. A subclass defines what it has; the defaults here stand for nothing."""

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Its parameter tensors, in order of registration."""
        return ()

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
        return (Segment(kernels(samples)),)
