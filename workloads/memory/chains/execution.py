"""Execution of a sequence on a chain: checks that each operation has what it reads; finds the duration and the peak.

The rules of memory are those of Beaumont et al. 2019 (arXiv:1911.13214, table 1): while an operation runs, its inputs,
its outputs and its extra bytes are held beside everything that is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import ScheduleError
from workloads.memory.chains.chain import Chain
from workloads.memory.chains.sequence import Kind, Operation, Sequence


@dataclass(frozen=True, slots=True)
class Execution:
    """*seconds* in all; the *peak* of the bytes; the bytes *held* between the forward and the backward pass."""

    seconds: float
    peak: float
    held: float


def executed(sequence: Sequence, chain: Chain) -> Execution:
    """Execute the forward and backward passes of *sequence* on *chain*, one after the other.

    The input of the chain is stored at the beginning and counts as `Chain.input_bytes`. Raises `ScheduleError`, naming
    the operation, if something it reads is not stored, or if a layer has no backward pass at the end.
    """
    memory = _Memory(chain)
    held = 0.0
    for index, operation in enumerate(sequence):
        try:
            memory.run(operation)
        except KeyError as error:
            done = " ".join(map(str, sequence.operations[:index]))
            raise ScheduleError(f"{operation} reads {error.args[0]}, which is not stored after: {done}") from None
        if operation.kind is Kind.TURN:
            held = memory.stored - chain.gradient(len(chain))
    if memory.below:
        raise ScheduleError(f"the backward pass of layer {memory.below} is missing in: {sequence}")
    return Execution(memory.seconds, memory.peak, held)


class _Memory:
    """What is stored: activations on their own, tapes, and one gradient. *below*: layers without backward pass yet."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.below = len(chain)
        self.activations = {0}
        self.tapes: set[int] = set()
        self.gradient: int | None = None
        self.stored = self.peak = chain.input_bytes
        self.seconds = 0.0

    def run(self, operation: Operation) -> None:
        """Execute *operation*. Raises `KeyError` with the name of a tensor that is missing."""
        if operation.kind.is_forward:
            self._forward(operation)
        elif operation.kind is Kind.TURN:
            self.gradient = len(self.chain)
            self._hold(self.chain.gradient(self.gradient))
            self._drop_activation(self.gradient)
        elif operation.kind is Kind.BACKWARD:
            self._backward(operation.layer)
        else:
            raise ScheduleError(f"{operation} is a transfer; this execution has no link to the host")

    def _forward(self, operation: Operation) -> None:
        number, layer = operation.layer, self.chain.layers[operation.layer - 1]
        self._need_activation(number - 1)
        saves = operation.kind is Kind.SAVE
        new = layer.tape if saves else layer.activation
        if number in (self.tapes if saves else self.activations):
            raise ScheduleError(f"{operation} stores what is stored already")
        self._hold(new, layer.forward_extra)
        (self.tapes if saves else self.activations).add(number)
        unread = saves and self.gradient == number
        self.seconds += layer.final_forward if unread else layer.forward
        if operation.kind is Kind.FORWARD:
            self._drop_activation(number - 1)

    def _backward(self, number: int) -> None:
        layer = self.chain.layers[number - 1]
        if self.gradient != number:
            raise KeyError(f"the gradient of a_{number}")
        if number not in self.tapes:
            raise KeyError(f"the tape of layer {number}")
        self._need_activation(number - 1)
        self._hold(self.chain.gradient(number - 1), layer.backward_extra)
        self.seconds += layer.backward
        self.tapes.remove(number)
        self.stored -= layer.tape + self.chain.gradient(number)
        self._drop_activation(number - 1)
        self.gradient = self.below = number - 1

    def _need_activation(self, number: int) -> None:
        if number not in self.activations and number not in self.tapes:
            raise KeyError(f"a_{number}")

    def _drop_activation(self, number: int) -> None:
        if number in self.activations:
            self.activations.remove(number)
            self.stored -= self.chain.activation(number)

    def _hold(self, nbytes: float, extra: float = 0.0) -> None:
        self.stored += nbytes
        self.peak = max(self.peak, self.stored + extra)
