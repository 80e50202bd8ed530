"""A layer made of operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from simulator.kernel import Kernel
from workloads.model import Layer
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor
from workloads.operators.segment import Segment


@dataclass(frozen=True)
class OperatorLayer(Layer):
    """*operators* in order; *sample_output_bytes*: what the layer passes on for each sample.

    *passed_on*: how many of these bytes it only hands on, so that a layer behind does not keep them as its own input.
    *reruns*: what recomputation by operator runs again, each with the bytes a sample that are then not kept; None: what
    operators say themselves, core attention.
    """

    name: str
    kind: str
    operators: tuple[Operator, ...]
    sample_output_bytes: float
    passed_on: float = 0.0
    reruns: tuple[tuple[Operator, float], ...] | None = None
    _kernels: dict[tuple[str, int], tuple[Kernel, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _segments: dict[tuple[str, int], tuple[Segment, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def again(self, name: str) -> OperatorLayer:
        """A layer *name* of the same operators, which shares what is known of their kernels."""
        other = replace(self, name=name)
        object.__setattr__(other, "_kernels", self._kernels)
        object.__setattr__(other, "_segments", self._segments)
        return other

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """The tensors of all operators, in order."""
        return tuple(tensor for operator in self.operators for tensor in operator.tensors)

    @property
    def active_parameters(self) -> int:
        """The sum over the operators."""
        return sum(operator.active_parameters for operator in self.operators)

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, in order."""
        return self._cached("forward", micro_batch_size, self.operators)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, last operator first."""
        return self._cached("backward_input", micro_batch_size, self.operators[::-1])

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, last operator first."""
        return self._cached("backward_weights", micro_batch_size, self.operators[::-1])

    def activation_bytes(self, micro_batch_size: int) -> float:
        """The sum over the operators."""
        return sum(operator.kept_bytes(micro_batch_size) for operator in self.operators)

    def output_bytes(self, micro_batch_size: int) -> float:
        """The output of all samples."""
        return self.sample_output_bytes * micro_batch_size

    def input_bytes_of_next(self, micro_batch_size: int) -> float:
        """The output without what is only passed on."""
        return (self.sample_output_bytes - self.passed_on) * micro_batch_size

    def transient_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Those of the operator with most: they run one after the other."""
        return max((operator.transient_bytes(phase, micro_batch_size) for operator in self.operators), default=0.0)

    def weight_bytes(self, micro_batch_size: int) -> float:
        """The sum over the operators."""
        return sum(operator.weight_bytes(micro_batch_size) for operator in self.operators)

    def unneeded_forward(self, micro_batch_size: int) -> int:
        """The kernels behind the last operator that keeps anything, and its own if it keeps its inputs only."""
        count = 0
        for operator in reversed(self.operators):
            kept = operator.kept_bytes(micro_batch_size)
            if kept and not operator.keeps_inputs:
                return count
            count += len(operator.forward(micro_batch_size))
            if kept:
                return count
        return count

    def recomputable_forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, in order."""
        if self.reruns is None:
            return self._cached("recomputable_forward", micro_batch_size, self.operators)
        return tuple(kernel for segment in self.recomputable_segments(micro_batch_size) for kernel in segment.kernels)

    def recomputable_segments(self, micro_batch_size: int) -> tuple[Segment, ...]:
        """The forward segments of the operators that are run again."""
        if self.reruns is None:
            again = [operator for operator in self.operators if operator.recomputable_forward(micro_batch_size)]
        else:
            again = [operator for operator, _ in self.reruns]
        return tuple(segment for operator in again for segment in _named(operator, "F", micro_batch_size))

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """The sum over the operators."""
        if self.reruns is not None:
            return micro_batch_size * sum(nbytes for _, nbytes in self.reruns)
        return sum(operator.recomputable_bytes(micro_batch_size) for operator in self.operators)

    def segments(self, phase: str, micro_batch_size: int) -> tuple[Segment, ...]:
        """The segments of all operators, last operator first in a backward phase; in phase B each one's I, then its W.

        One segment where no operator exchanges anything.
        """
        key = phase, micro_batch_size
        if key not in self._segments:
            found = self._operator_segments(phase, micro_batch_size)
            alone = not any(segment.exchanges for segment in found)
            self._segments[key] = super().segments(phase, micro_batch_size) if alone else found
        return self._segments[key]

    def _operator_segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        operators, phases = (self.operators, "F") if phase == "F" else (self.operators[::-1], _halves(phase))
        every = (s for operator in operators for half in phases for s in _named(operator, half, samples))
        return tuple(segment for segment in every if segment.kernels or segment.exchanges)

    def _cached(self, phase: str, samples: int, operators: tuple[Operator, ...]) -> tuple[Kernel, ...]:
        key = phase, samples
        if key not in self._kernels:
            made = (operator.named(getattr(operator, phase)(samples)) for operator in operators)
            self._kernels[key] = tuple(kernel for kernels in made for kernel in kernels)
        return self._kernels[key]


def _named(operator: Operator, phase: str, samples: int) -> Iterator[Segment]:
    """The segments of *operator*, with the operations of their kernels."""
    for segment in operator.segments(phase, samples):
        named = operator.named(segment.kernels)
        yield segment if named is segment.kernels else replace(segment, kernels=named)


def _halves(phase: str) -> str:
    return "IW" if phase == "B" else phase
