"""What the passes know of a training step beside its schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.accelerator import Software
from workloads.model import Model


@dataclass(frozen=True)
class TrainingStep:
    """*model* has its layers as one rank holds them; *micro_batches* of *micro_batch_size* samples in each replica.

    *gradient_dtype*: None for the precision of the model.
    """

    model: Model
    micro_batch_size: int
    micro_batches: int
    optimizer: str = "adam"
    gradient_dtype: str | None = None
    software: Software = field(default_factory=Software)
