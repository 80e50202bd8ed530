"""A unit model has equal layers of given durations, as in the figures of papers.

Durations, activations and parameters are given, so nothing depends on the accelerator or on the size of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import Kernel, measured
from workloads.model import Layer, Model
from workloads.operators.parameter import ParameterTensor, parameter_tensors


@dataclass(frozen=True)
class UnitLayer(Layer):
    """A layer of *forward_seconds* and *backward_seconds* for every micro-batch.

    Half of the backward pass is for the input and half for the weights, as the zero-bubble schedules draw it (Qi et al.
    2023, arXiv:2401.10241, figure 2). *boundary_bytes*: it passes on so many, and keeps so many for its backward pass.
    """

    name: str
    forward_seconds: float
    backward_seconds: float
    count: int = 0
    boundary_bytes: float = 0.0
    kind: str = "unit"

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """One tensor of all the layer's parameters, or none."""
        return parameter_tensors(self.count) if self.count else ()

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel of the given duration."""
        return (measured(self.forward_seconds),)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel of half the given duration."""
        return (measured(self.backward_seconds / 2),)

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel of half the given duration."""
        return (measured(self.backward_seconds / 2),)

    def activation_bytes(self, micro_batch_size: int) -> float:
        """The given bytes per layer boundary."""
        return self.boundary_bytes

    def output_bytes(self, micro_batch_size: int) -> float:
        """The given bytes per layer boundary."""
        return self.boundary_bytes


def unit_model(
    num_layers: int,
    forward: float,
    backward: float,
    parameters: int = 0,
    activations: float = 0.0,
    *,
    precision: str = "fp32",
    name: str = "unit",
) -> Model:
    """*num_layers* layers of *forward* and *backward* seconds each; the optimizer is free.

    *parameters* in all, spread as evenly as they go, the first layers taking one more; *activations* in bytes per layer
    boundary.

    >>> [layer.parameters for layer in unit_model(3, 1, 2, parameters=8).layers]
    [3, 3, 2]
    """
    share, more = divmod(parameters, num_layers)
    layers = [
        UnitLayer(f"layer {number}", forward, backward, share + (number < more), activations)
        for number in range(num_layers)
    ]
    return Model(name, layers, sample_bytes=0.0, precision=precision, optimizer_seconds=0.0)
