"""The `model:` sections of models of known durations, kinds profile (measured layers) and unit (given durations)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from clustersim.simulator.reading.quantities import Amount, Count, Quantity, Time
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.model_keys import KNOWN, MOST_LAYERS, Named, most
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator_names import Fused


class ProfileSpecification(Named):
    """Measured layers."""

    kind: Annotated[Literal["profile"], KNOWN] = "profile"
    """profile: from measured layers."""
    profile: Annotated[str, Field(min_length=1)]
    """CSV file of measured layers, relative to the scenario: forward_ms, backward_ms, activation_bytes,
    parameter_bytes. Required."""
    model: str | None = None
    """The model, where the file has several."""
    batch_size: Count | None = None
    """Samples on which the layers were measured, where the file does not say."""

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model; durations are as measured, whatever *precision* and *fused*. Paths are relative to *folder*."""
        from clustersim.workloads.architectures.timed_models import profile

        return profile((folder or Path()) / self.profile, self.model, self.batch_size, precision)


class UnitSpecification(Named):
    """Durations that are given per layer and micro-batch; the optimizer takes no time."""

    kind: Annotated[Literal["unit"], KNOWN]
    """unit: given durations. Required."""
    num_layers: Count
    """Layers. Required."""
    forward: Time
    """Time of a layer's forward pass of one micro-batch. Required"""
    backward: Time
    """Time of a layer's backward pass of one micro-batch. Required"""
    parameters: Quantity = 0.0
    """Parameters of the whole model, e.g. 25.6M."""
    activations: Amount = 0.0
    """Bytes of the activations at a layer's boundary, for one micro-batch"""

    @model_validator(mode="after")
    def _sound(self) -> UnitSpecification:
        most("num_layers", self.num_layers, MOST_LAYERS)
        if not self.parameters.is_integer():
            raise Fault("parameters", f"must be a whole number, not {self.parameters}")
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model; durations are as given, whatever *precision* and *fused*."""
        from clustersim.workloads.architectures.timed_models import unit_model

        sizes = int(self.parameters), self.activations
        return unit_model(self.num_layers, self.forward, self.backward, *sizes, precision=precision, name=self.title)
