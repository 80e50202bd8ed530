"""Optimal checkpointing: the sequence of the least duration within a budget of memory.

Between forward and backward pass of a micro-batch other micro-batches pass its stage. With k in flight, k - 1 hold what
they stored in their forward pass, the *held* bytes h, while one runs. So the programme finds, for each h, the fastest
sequence that holds at most h and runs in what (k - 1) h leaves; the fastest of all h is taken. With k = 1 this is
Rotor's programme (Beaumont et al. 2019, arXiv:1911.13214). With more in flight the last layers may save nothing at
first and be run again. The stages of one rank share one h, and k counts the passes of all of them: optimal for equal
stages, and never above the budget.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from math import inf

import numpy as np
import numpy.typing as npt

from simulator.errors import ScheduleError
from simulator.units import show
from workloads.memory.chains.chain import Chain
from workloads.memory.chains.execution import Execution, executed
from workloads.memory.chains.least_memory import least_together
from workloads.memory.chains.methods import saving_all
from workloads.memory.chains.segments import Choices, Seconds, Segments, advance
from workloads.memory.chains.sequence import TURN, Kind, Operation, Sequence
from workloads.memory.chains.slots import Slots, slots_of

HEIGHTS = 128
"""Values of h that are tried at most."""

SAVES = 0
"""The choice that a layer saves its tape; any other is k: the activation a_k is stored next."""


def optimal(chain: Chain, budget: float, in_flight: int = 1) -> Sequence:
    """Return the fastest sequence of *chain* with *in_flight* micro-batches of which one runs at a time.

    *budget*: bytes of all of them together, the inputs of the chain included as `Chain.input_bytes`. Raises
    `BudgetError`, which says the smallest budget that suffices.

    >>> chain = Chain.of([8, 8, 7, 7, 6, 3, 1], [8, 8, 14, 8, 3, 1])
    >>> str(optimal(chain, 21))
    'F1c F2n F3n F4e F5e F6e Loss BLoss B6 B5 B4 F1c F2n F3e B3 F1e F2e B2 B1'
    """
    return optimal_together([chain], budget, in_flight)[0]


class BudgetError(ScheduleError):
    """*budget* bytes are less than the *least* that any sequence needs."""

    def __init__(self, budget: float, least: float) -> None:
        super().__init__(
            f"{show(budget, 'size', 4)} are too little: the activations need at least {show(least, 'size', 4)}"
        )
        self.budget, self.least = budget, least


def optimal_together(chains: Several[Chain], budget: float, in_flight: int = 1) -> tuple[Sequence, ...]:
    """Return a sequence of each of *chains*, the stages of one rank; *in_flight* counts the passes of all together."""
    least, slowest = least_together(chains, in_flight)
    if budget < least:
        raise BudgetError(budget, least)
    saving = tuple(saving_all(len(chain)) for chain in chains)
    if _seconds_within(saving, chains, budget, in_flight) < inf:
        return saving
    slots = slots_of(chains, budget, in_flight)
    known = {chain: _Programme(chain, slots, in_flight) for chain in dict.fromkeys(chains)}
    programmes = [known[chain] for chain in chains]
    found = [slowest]
    total = np.sum([programme.seconds for programme in programmes], axis=0)
    if np.isfinite(total).any():
        held = int(total.argmin())
        found.append(tuple(programme.sequence(held) for programme in programmes))
    return min(found, key=lambda sequences: _seconds_within(sequences, chains, budget, in_flight))


def _seconds_within(sequences: Several[Sequence], chains: Several[Chain], budget: float, in_flight: int) -> float:
    """Seconds of *sequences*; infinite if they need more than *budget*."""
    runs = [executed(sequence, chain) for sequence, chain in zip(sequences, chains, strict=True)]
    return sum(run.seconds for run in runs) if peak_in_flight(runs, in_flight) <= budget else inf


def peak_in_flight(runs: Several[Execution], in_flight: int) -> float:
    """Bytes at most if one of *runs*, the stages of a rank, runs, and *in_flight* - 1 are between their passes."""
    return (in_flight - 1) * max(run.held for run in runs) + max(run.peak for run in runs)


class _Programme:
    """The forward pass of one chain, by what it may hold at most (h) and what it has stored so far (w), in slots."""

    def __init__(self, chain: Chain, slots: Slots, in_flight: int) -> None:
        self._chain, self._length = chain, len(chain)
        self._segments = Segments(chain, slots)
        self._held = _heights(slots.count, in_flight)
        stored = np.arange(self._held[-1] + 1)
        self._allowed = stored <= self._held[:, None]
        left = slots.count - (in_flight - 1) * self._held[:, None] - stored
        self._room = np.where(self._allowed, left, 0)
        self._choices: list[Choices] = []
        after = [np.where(self._allowed, 0.0, inf)]
        for first in range(self._length, 0, -1):
            seconds, choices = self._solve(first, after)
            after.insert(0, seconds)
            self._choices.insert(0, choices)
        self._begin = self._segments.activation[0]
        self.seconds = after[0][:, self._begin] if self._begin < len(stored) else np.full(len(self._held), inf)
        """The least seconds by h."""

    def sequence(self, held: int) -> Sequence:
        """The fastest sequence with h of that index."""
        forward: list[Operation] = []
        backward: list[tuple[Operation, ...]] = []
        first, stored = 1, self._begin
        while first <= self._length:
            kept = int(self._choices[first - 1][held, stored])
            if kept == SAVES:
                forward.append(Operation(Kind.SAVE, first))
                backward.append((Operation(Kind.BACKWARD, first),))
                first, stored = first + 1, stored + self._segments.tape[first]
            else:
                forward += advance(first, kept)
                backward.append(tuple(self._segments.operations(first, kept, int(self._room[held, stored]))))
                first, stored = kept + 1, stored + self._stored(kept)
        return Sequence((*forward, TURN, *(operation for part in reversed(backward) for operation in part)))

    def _stored(self, number: int) -> int:
        """Slots of a_number between its layer and the next; the last one leaves the chain."""
        return self._segments.activation[number] if number < self._length else 0

    def _solve(self, first: int, after: Several[Seconds]) -> tuple[Seconds, Choices]:
        """The least seconds of layers *first* ... L by h and w, and the choices; *after*: of the layers behind."""
        layer, table = self._chain.layers[first - 1], self._segments
        seconds = layer.forward + layer.backward + _later(after[0], table.tape[first])
        seconds[self._room < table.peak_saving(first, 0.0)] = inf
        choices = np.full(seconds.shape, SAVES, np.int16)
        peaks = table.peaks_advancing(first, self._length, 0.0)
        peaks[-1] = max(
            peaks[-1], table.slots.peak(self._chain.layers[-1].activation + self._chain.layers[-1].gradient)
        )
        for kept, peak in enumerate(peaks, first):
            again = table.seconds(first, kept)[self._room] + table.forward(first, kept)
            total = again + _later(after[kept - first], self._stored(kept))
            better = (total < seconds) & (self._room >= peak)
            seconds[better], choices[better] = total[better], kept
        return seconds, choices


def _heights(count: int, in_flight: int) -> npt.NDArray[np.int64]:
    """The values of h that are tried, of *count* slots; h is all of them if nothing else is in flight."""
    most = count // in_flight
    return (
        np.array([most]) if in_flight == 1 else np.unique(np.linspace(0, most, min(most + 1, HEIGHTS)).astype(np.int64))
    )


def _later(seconds: Seconds, slots: int) -> Seconds:
    """*seconds* by (h, w) after *slots* more have been stored."""
    moved = np.full(seconds.shape, inf)
    if slots < seconds.shape[1]:
        moved[:, : seconds.shape[1] - slots] = seconds[:, slots:]
    return moved
