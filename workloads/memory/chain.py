"""A heterogeneous chain: the seconds and bytes of each layer; the chain of a pipeline stage; and the least seconds of
every segment of a chain by slots of memory, Rotor's dynamic programme.

The model and its letters are those of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, "Optimal checkpointing
for heterogeneous chains: how to train deep neural networks with limited memory" (arXiv:1911.13214, section 3).

Stored sizes are rounded up to whole slots, so a sequence never needs more than its budget. If all stored sizes are
multiples of a number of bytes, and the budget has few of these, that number is the slot and nothing is lost.

Beaumont et al. 2019 (arXiv:1911.13214, theorem 1). Among persistent sequences it is optimal: what is stored stays until
the backward pass that needs it. Layers s ... t are run from a_(s-1), with the gradient of a_t at hand. Either layer s
saves its tape and stays, or the segment is run up to a checkpoint a_k, layers k + 1 ... t are run from it, and then
layers s ... k from a_(s-1). The memory of a segment excludes a_(s-1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, gcd, inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.workloads.memory.chain_sequence import ChainOperation, Kind, advance
from clustersim.workloads.operators.model import Layer


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """Layer l of a chain. Times in seconds, sizes in bytes.

    *forward* (u_f) and *backward* (u_b): durations. *activation* (a_l): the output that layer l + 1 reads. *tape*
    (the paper's a_l with a bar): all that the forward pass saves for the backward pass of the layer. It includes the
    output and excludes the input a_(l-1). *gradient* (delta_l): the gradient of the output. *forward_extra* (o_f) and
    *backward_extra* (o_b): held only while the operation runs. *last_forward*: duration of a forward pass that saves
    all and whose output nobody reads; it may stop early. Default: that of the forward pass.
    """

    name: str
    forward: float
    backward: float
    activation: float
    tape: float
    gradient: float = 0.0
    forward_extra: float = 0.0
    backward_extra: float = 0.0
    last_forward: float | None = None

    def __post_init__(self) -> None:
        if self.tape < self.activation:
            raise ScheduleError(
                f"layer {self.name}: the tape of {self.tape:g} B is less than the activation of {self.activation:g} B "
                "that it includes"
            )

    @property
    def final_forward(self) -> float:
        """Seconds of a forward pass that saves all and whose output nobody reads."""
        return self.forward if self.last_forward is None else self.last_forward


@dataclass(frozen=True, slots=True)
class Chain:
    """*layers* in order of the forward pass; layer l is ``layers[l - 1]``, as the paper counts from 1.

    *input_bytes* (a_0): the input of layer 1. It is held from the first forward pass to the backward pass of layer 1.
    *input_gradient* (delta_0): its gradient, if that is computed.
    """

    layers: tuple[ChainLayer, ...]
    input_bytes: float = 0.0
    input_gradient: float = 0.0

    def __len__(self) -> int:
        return len(self.layers)

    def activation(self, number: int) -> float:
        """Bytes of a_number: the output of layer *number*, or the input of the chain for 0."""
        return self.layers[number - 1].activation if number else self.input_bytes

    def gradient(self, number: int) -> float:
        """Bytes of the gradient of a_number."""
        return self.layers[number - 1].gradient if number else self.input_gradient

    @property
    def seconds(self) -> float:
        """Duration of one forward and one backward pass of every layer: without recomputation."""
        return sum(layer.forward + layer.backward for layer in self.layers)

    @classmethod
    def of(
        cls,
        activations: Sequence[float],
        tapes: Sequence[float],
        forward: Sequence[float] | float = 1.0,
        backward: Sequence[float] | float = 1.0,
        gradients: Sequence[float] | float = 0.0,
    ) -> Chain:
        """Build from columns: *activations* a_0 ... a_L, and an entry a layer (or one number) for the others.

        a_0 is not counted, as the paper's programme does not count it.

        >>> len(Chain.of([1, 1, 1], [2, 2]))
        2
        """
        count = len(tapes)
        if len(activations) != count + 1:
            raise ScheduleError(
                f"{count} layers have {count + 1} activations a_0 ... a_{count}, not {len(activations)}"
            )
        columns = (_column(values, count) for values in (forward, backward, gradients))
        rows = zip(activations[1:], tapes, *columns, strict=True)
        return cls(
            tuple(ChainLayer(str(number), f, b, a, tape, g) for number, (a, tape, f, b, g) in enumerate(rows, 1)),
        )


def _column(values: Sequence[float] | float, count: int) -> Sequence[float]:
    return [values] * count if isinstance(values, (int, float)) else values


class LayerSeconds(NamedTuple):
    """Durations of a layer in s; *last*: of a forward pass whose output nobody reads."""

    forward: float
    backward: float
    last: float


def stage_chain(
    layers: Sequence[Layer], previous: Layer | None, samples: int, seconds: Mapping[str, LayerSeconds]
) -> Chain:
    """Return the chain of *layers*, a stage, for micro-batches of *samples*; *seconds* by name.

    *previous*: the layer before the stage. A layer keeps its input with its activations, so the tape of the one before
    has these bytes. The output of the stage is sent and not kept. Gradients are part of what a backward pass holds
    while it runs.
    """
    inputs = [one.input_bytes_of_next(samples) if one else 0.0 for one in (previous, *layers[:-1])]
    made = []
    for number, layer in enumerate(layers):
        own = seconds[layer.name]
        output = inputs[number + 1] if number + 1 < len(layers) else 0.0
        made.append(
            ChainLayer(
                layer.name,
                own.forward,
                own.backward,
                activation=output,
                tape=max(0.0, layer.activation_bytes(samples) - inputs[number]) + output,
                forward_extra=layer.transient_bytes("F", samples) - layer.buffer_bytes("F", samples),
                backward_extra=layer.transient_bytes("I", samples) - layer.buffer_bytes("I", samples),
                last_forward=own.last,
            )
        )
    return Chain(tuple(made), input_bytes=inputs[0])


PER_MICRO_BATCH = 500
"""Slots for each micro-batch in flight, as in the paper (Beaumont et al. 2019, arXiv:1911.13214, section 5.2)."""

ALONE = 4000
"""Slots if one micro-batch is in flight: as long as the chain is short, more cost little."""

MOST, MOST_EXACT = 4_000_000, 10_000_000
"""Slots of all segments of a chain together, if sizes are rounded and if none is: the tables take 18 bytes for each."""

EXACT = 1e-9
"""Slots by which a size may exceed a whole number of slots, so that rounding errors take no slot."""


@dataclass(frozen=True, slots=True)
class Slots:
    """*count* slots of *nbytes*, and *spare*: the part of a slot, below 1, that the budget has beyond them."""

    nbytes: float
    count: int
    spare: float = 0.0

    def stored(self, nbytes: float) -> int:
        """Slots that a stored tensor takes; more than all for what does not fit."""
        return min(ceil(nbytes / self.nbytes - EXACT), self.count + 1)

    def peak(self, nbytes: float) -> int:
        """Slots that must be left where *nbytes* are needed beside what is stored."""
        return max(0, min(ceil(nbytes / self.nbytes - self.spare - EXACT), self.count + 1))


def slots_of(chains: Sequence[Chain], budget: float, in_flight: int = 1) -> Slots:
    """Return the slots for *budget* bytes, which *in_flight* passes over *chains* share."""
    length = max(map(len, chains))
    wanted = ALONE if in_flight == 1 else PER_MICRO_BATCH * in_flight
    segments = length * (length + 1) // 2
    count = max(PER_MICRO_BATCH, min(wanted, MOST // segments))
    unit = _unit(chains)
    if unit and budget / unit < max(count, MOST_EXACT // segments):
        whole = int(budget / unit + EXACT)
        return Slots(unit, whole, max(0.0, budget / unit - whole))
    return Slots(budget / count, count)


def _unit(chains: Sequence[Chain]) -> int:
    """Return the largest number of bytes that divides all stored sizes; 0 if there is none."""
    sizes = [chain.input_bytes for chain in chains]
    sizes += [size for chain in chains for layer in chain.layers for size in (layer.activation, layer.tape)]
    if any(size != int(size) for size in sizes):
        return 0
    return gcd(*map(int, sizes))


Seconds = npt.NDArray[np.float64]
"""By slots of memory, from 0."""

Choices = npt.NDArray[np.int16]

STAYS = 0
"""The choice that layer s saves its tape; any other is k, the number of the activation that becomes a checkpoint."""


class Segments:
    """The programme of *chain*, for segments (s, t) counted from 1.

    *activation*, *tape*: slots of a_l and of the tape of l, by l. *slots*: the memory.
    """

    def __init__(self, chain: Chain, slots: Slots) -> None:
        self.chain, self.slots = chain, slots
        self.activation = [slots.stored(chain.activation(number)) for number in range(len(chain) + 1)]
        self.tape = [0, *(slots.stored(layer.tape) for layer in chain.layers)]
        self._until = np.cumsum([0.0, *(layer.forward for layer in chain.layers)])
        count, width = len(chain), slots.count + 1
        # by s, then t - s; and by t, then s - 1, as they are behind a checkpoint a_(s-1), which takes its slots
        self._seconds = [np.full((count - first, width), inf) for first in range(count)]
        self._behind = [np.full((last, width), inf) for last in range(1, count + 1)]
        self._choices: dict[tuple[int, int], Choices] = {}
        for length in range(count):
            for first in range(1, count - length + 1):
                self._solve(first, first + length)

    def seconds(self, first: int, last: int) -> Seconds:
        """The least seconds of layers *first* ... *last*, by slots of memory."""
        found: Seconds = self._seconds[first - 1][last - first]
        return found

    def forward(self, first: int, last: int) -> float:
        """Seconds of one forward pass of layers *first* ... *last*."""
        return float(self._until[last] - self._until[first - 1])

    def operations(self, first: int, last: int, slots: int) -> Iterator[ChainOperation]:
        """The operations of the segment with that many *slots*, which suffice."""
        kept = int(self._choices[first, last][slots])
        if kept == STAYS:
            yield ChainOperation(Kind.SAVE, first)
            if first < last:
                yield from self.operations(first + 1, last, slots - self.tape[first])
            yield ChainOperation(Kind.BACKWARD, first)
            return
        yield from advance(first, kept)
        yield from self.operations(kept + 1, last, slots - self.activation[kept])
        yield from self.operations(first, kept, slots)

    def peak_saving(self, first: int, gradient: float) -> int:
        """Slots while layer *first* saves its tape beside *gradient* bytes, and while its backward pass runs."""
        layer = self.chain.layers[first - 1]
        gradients = self.chain.gradient(first) + self.chain.gradient(first - 1)
        forward, backward = gradient + layer.forward_extra, gradients + layer.backward_extra
        return max(self.tape[first], self.slots.peak(layer.tape + max(forward, backward)))

    def peaks_advancing(self, first: int, last: int, gradient: float) -> list[int]:
        """Slots of running layers *first* ... k beside *gradient* bytes, saving only the last, for k until *last*."""
        peaks, peak = [], 0.0
        for number in range(first, last + 1):
            layer = self.chain.layers[number - 1]
            before = 0.0 if number == first else self.chain.activation(number - 1)
            peak = max(peak, before + layer.activation + gradient + layer.forward_extra)
            peaks.append(self.slots.peak(peak))
        return peaks

    def _solve(self, first: int, last: int) -> None:
        gradient = self.chain.gradient(last)
        seconds, choices = self._staying(first, last, gradient), np.full(self.slots.count + 1, STAYS, np.int16)
        if first < last:
            total = self._behind[last - 1][first:last] + self._seconds[first - 1][: last - first]
            total += (self._until[first:last] - self._until[first - 1])[:, None]
            for row, peak in zip(total, self.peaks_advancing(first, last - 1, gradient), strict=True):
                row[:peak] = inf
            best = total.argmin(axis=0)
            least = np.take_along_axis(total, best[None], axis=0)[0]
            better = least < seconds
            seconds[better], choices[better] = least[better], (best + first)[better]
        self._seconds[first - 1][last - first] = seconds
        self._behind[last - 1][first - 1] = shifted(seconds, self.activation[first - 1])
        self._choices[first, last] = choices

    def _staying(self, first: int, last: int, gradient: float) -> Seconds:
        """Seconds of the segment if layer *first* saves its tape."""
        layer = self.chain.layers[first - 1]
        if first == last:
            seconds = np.full(self.slots.count + 1, layer.final_forward + layer.backward, np.float64)
        else:
            seconds = shifted(self.seconds(first + 1, last), self.tape[first]) + layer.forward + layer.backward
        seconds[: self.peak_saving(first, gradient)] = inf
        return seconds


def shifted(seconds: Seconds, slots: int) -> Seconds:
    """*seconds* by memory if *slots* of it are taken: infinite where too little is left."""
    moved = np.full(len(seconds), inf)
    if slots < len(seconds):
        moved[slots:] = seconds[: len(seconds) - slots]
    return moved
