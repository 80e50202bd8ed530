"""Execution of a sequence on a chain: its duration and its peak of memory, without and with copies to the host.

The rules of memory are those of Beaumont et al. 2019 (arXiv:1911.13214, table 1): while an operation runs, its inputs,
its outputs and its extra bytes are held beside everything that is stored.

With copies a tape is held in two parts, a_l and the rest, since a copy to the host takes the rest together with
a_(l-1). Bytes on their way to the host count until the computation has waited for them, so that the peak holds for
every bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.workloads.memory.chain import Chain
from clustersim.workloads.memory.chain_sequence import ACTIVATION, ChainOperation, ChainSequence, Kind


@dataclass(frozen=True, slots=True)
class Execution:
    """*seconds* in all; the *peak* of the bytes; the bytes *held* between the forward and the backward pass."""

    seconds: float
    peak: float
    held: float


def executed(sequence: ChainSequence, chain: Chain) -> Execution:
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

    def run(self, operation: ChainOperation) -> None:
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

    def _forward(self, operation: ChainOperation) -> None:
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


Part = tuple[str, int]
"""(``a``, l): the activation a_l. (``r``, l): the rest of the tape of l."""

REST = "r"


@dataclass(frozen=True, slots=True)
class TimedExecution:
    """*seconds* in all; the *peak* of the bytes on the GPU; those *held* between the passes.

    *waited*: seconds in which the computation waited for copies. *copied*: bytes copied to the host, and as many back.
    *host_peak*: the most bytes on the host.
    """

    seconds: float
    peak: float
    held: float
    waited: float
    copied: float
    host_peak: float


def executed_with_copies(sequence: ChainSequence, chain: Chain, bandwidth: float) -> TimedExecution:
    """Execute *sequence* on *chain*, with copies of *bandwidth* bytes/s in each direction.

    Raises `ScheduleError`, naming the operation, if something it reads is not there.
    """
    run = _Run(chain, bandwidth)
    for index, operation in enumerate(sequence):
        try:
            run.step(operation)
        except KeyError as error:
            done = " ".join(map(str, sequence.operations[:index]))
            raise ScheduleError(f"{operation} reads {error.args[0]}, which is not there after: {done}") from None
    if run.below or run.on_host:
        raise ScheduleError(f"layers without a backward pass, or bytes left on the host, in: {sequence}")
    return TimedExecution(run.clock, run.peak, run.held, run.waited, run.copied, run.host_peak)


def copied_parts(operation: ChainOperation) -> Iterator[Part]:
    """What the transfer *operation* copies."""
    if operation.tensor == ACTIVATION:
        yield ACTIVATION, operation.layer
    else:
        yield REST, operation.layer
        yield ACTIVATION, operation.layer - 1


class _Run:
    """The state of an execution: *there* has by part the moment (s) at which it can be read."""

    def __init__(self, chain: Chain, bandwidth: float) -> None:
        self.chain, self.bandwidth = chain, bandwidth
        self.there: dict[Part, float] = {(ACTIVATION, 0): 0.0}
        self.saved: set[int] = set()
        self.on_host: dict[Part, float] = {}
        self.below, self.gradient = len(chain), -1
        self.clock = self.waited = self.copied = self.held = self.host_peak = 0.0
        self.out = self.back = 0.0
        self.stored = self.peak = chain.input_bytes

    def step(self, operation: ChainOperation) -> None:
        """Execute *operation*. Raises `KeyError` with the name of what is missing."""
        if operation.kind.is_forward:
            self._forward(operation)
        elif operation.kind is Kind.BACKWARD:
            self._backward(operation.layer)
        elif operation.kind is Kind.TURN:
            self.gradient = len(self.chain)
            self._hold(self.chain.gradient(self.gradient))
            self._drop(self.gradient)
            self.held = self.stored - self.chain.gradient(self.gradient)
        else:
            parts = list(copied_parts(operation))
            {Kind.OFFLOAD: self._offload, Kind.WAIT: self._wait, Kind.PREFETCH: self._prefetch}[operation.kind](parts)

    def nbytes(self, part: Part) -> float:
        """The size of *part*."""
        kind, number = part
        activation = self.chain.activation(number)
        return activation if kind == ACTIVATION else self.chain.layers[number - 1].tape - activation

    def _forward(self, operation: ChainOperation) -> None:
        number, layer = operation.layer, self.chain.layers[operation.layer - 1]
        self._need((ACTIVATION, number - 1))
        saves = operation.kind is Kind.SAVE
        made: list[Part] = [(ACTIVATION, number), *([(REST, number)] if saves else [])]
        if any(part in self.there for part in made):
            raise ScheduleError(f"{operation} stores what is stored already")
        self._hold(sum(map(self.nbytes, made)), layer.forward_extra)
        self.clock += layer.final_forward if saves and self.gradient == number else layer.forward
        self.there |= dict.fromkeys(made, self.clock)
        if saves:
            self.saved.add(number)
        if operation.kind is Kind.FORWARD:
            self._drop(number - 1)

    def _backward(self, number: int) -> None:
        layer = self.chain.layers[number - 1]
        if self.gradient != number:
            raise KeyError(f"the gradient of a_{number}")
        self._need((REST, number), (ACTIVATION, number), (ACTIVATION, number - 1))
        self._hold(self.chain.gradient(number - 1), layer.backward_extra)
        self.clock += layer.backward
        self.saved.remove(number)
        self._free((REST, number))
        self._drop(number)
        self.stored -= self.chain.gradient(number)
        self._drop(number - 1)
        self.gradient = self.below = number - 1

    def _offload(self, parts: list[Part]) -> None:
        self._need(*parts)
        size = sum(map(self.nbytes, parts))
        self.out = max(self.out, self.clock) + size / self.bandwidth
        self.on_host |= dict.fromkeys(parts, self.out)
        self.copied += size
        self.host_peak = max(self.host_peak, sum(map(self.nbytes, self.on_host)))

    def _wait(self, parts: list[Part]) -> None:
        self._until(max(self.on_host[part] for part in parts))
        for part in parts:
            self._free(part)

    def _prefetch(self, parts: list[Part]) -> None:
        for part in parts:
            if part not in self.on_host:
                raise KeyError(f"{part} on the host")
        size, begin = sum(map(self.nbytes, parts)), max(self.on_host.pop(part) for part in parts)
        self._hold(size)
        self.back = max(self.back, self.clock, begin) + size / self.bandwidth
        self.there |= dict.fromkeys(parts, self.back)

    def _need(self, *parts: Part) -> None:
        for part in parts:
            if part not in self.there:
                raise KeyError(f"a_{part[1]}" if part[0] == ACTIVATION else f"the tape of layer {part[1]}")
            self._until(self.there[part])

    def _until(self, moment: float) -> None:
        self.waited += max(0.0, moment - self.clock)
        self.clock = max(self.clock, moment)

    def _drop(self, number: int) -> None:
        """Free a_number, unless a tape has it."""
        if number not in self.saved and (ACTIVATION, number) in self.there:
            self._free((ACTIVATION, number))

    def _free(self, part: Part) -> None:
        del self.there[part]
        self.stored -= self.nbytes(part)

    def _hold(self, nbytes: float, extra: float = 0.0) -> None:
        self.stored += nbytes
        self.peak = max(self.peak, self.stored + extra)
