"""Operators over a rank's share of the samples of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clustersim.simulator.hardware.kernel import Kernel, Operation
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.operator import Operator, Segment
from clustersim.workloads.operators.parameter import ParameterTensor
from clustersim.workloads.operators.sharded import Grid, ShardedOperator


def of_samples(operators: Sequence[Operator], grid: Grid | None) -> tuple[Operator, ...]:
    """*operators*, which are of one rank but for the samples, over the samples that it has on *grid*."""
    if grid is None:
        return tuple(operators)
    # ranks that exchange something for an operator divide its products
    alone = (not isinstance(operator, ShardedOperator) for operator in operators)
    return tuple(
        OfSamples(operator, grid.sample_shares, grid.copies if one else 1)
        for operator, one in zip(operators, alone, strict=True)
    )


@dataclass(frozen=True)
class OfSamples(Operator):
    """*whole* over one of *shares* parts of the samples. *copies*: the ranks that compute the same."""

    whole: Operator
    shares: int
    copies: int = 1

    @property
    def operation(self) -> Operation:
        """As the whole."""
        return self.whole.operation

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As the whole."""
        return self.whole.tensors

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.forward(self._own(samples)))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.backward_input(self._own(samples)))

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.backward_weights(self._own(samples)))

    def kept_bytes(self, samples: int) -> float:
        """As the whole."""
        return self.whole.kept_bytes(self._own(samples))

    def transient_bytes(self, phase: str, samples: int) -> float:
        """As the whole."""
        return self.whole.transient_bytes(phase, self._own(samples))

    def weight_bytes(self, samples: int) -> float:
        """As the whole."""
        return self.whole.weight_bytes(self._own(samples))

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """As the whole."""
        return self._counted(self.whole.recomputable_forward(self._own(samples)))

    def recomputable_bytes(self, samples: int) -> float:
        """As the whole."""
        return self.whole.recomputable_bytes(self._own(samples))

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """As the whole."""
        made = self.whole.segments(phase, self._own(samples))
        return tuple(replace(segment, kernels=self._counted(segment.kernels)) for segment in made)

    def _own(self, samples: int) -> int:
        if samples % self.shares:
            raise ScenarioError(f"{self.shares} ranks cannot share a micro-batch of {samples} samples")
        return samples // self.shares

    def _counted(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        if self.copies == 1:
            return kernels
        return tuple(replace(kernel, copies=self.copies) if kernel.flops else kernel for kernel in kernels)
