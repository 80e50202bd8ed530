"""Optimal checkpointing: the fastest sequence within a budget of memory, and the least budget that suffices.

The least budget comes from the same dynamic programme with peaks in place of seconds: the peak of a segment is the
highest of its parts. Nothing is rounded.

Between forward and backward pass of a micro-batch other micro-batches pass its stage. With k in flight, k - 1 hold what
they stored in their forward pass, the *held* bytes h, while one runs. So the programme finds, for each h, the fastest
sequence that holds at most h and runs in what (k - 1) h leaves; the fastest of all h is taken. With k = 1 this is
Rotor's programme (Beaumont et al. 2019, arXiv:1911.13214). With more in flight the last layers may save nothing at
first and be run again. The stages of one rank share one h, and k counts the passes of all of them: optimal for equal
stages, and never above the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.units import show
from clustersim.workloads.memory.chain import STAYS, Chain, Choices, Seconds, Segments, Slots, slots_of
from clustersim.workloads.memory.chain_execution import Execution, executed
from clustersim.workloads.memory.chain_sequence import (
    TURN,
    ChainOperation,
    ChainSequence,
    Kind,
    advance,
    fixed_sequence,
    saving_all,
)

Found = dict[tuple[int, int], tuple[float, int]]
"""By segment: (peak without its input, choice)."""


class _Rest(NamedTuple):
    """How layers s ... L may be run: bytes *held* at the turn and the *peak*, without what is stored before s.

    *kept*: the choices, `STAYS` or the number of the activation that is stored next.
    """

    held: float
    peak: float
    kept: tuple[int, ...] = ()


def least_budget(chain: Chain, in_flight: int = 1) -> float:
    """Return the bytes of the smallest budget that suffices for *in_flight* micro-batches."""
    return least_together([chain], in_flight)[0]


def least_together(chains: Several[Chain], in_flight: int) -> tuple[float, tuple[ChainSequence, ...]]:
    """Return the smallest budget of *chains*, the stages of a rank, and the sequences that need no more.

    *in_flight* counts the passes of all; each may hold as much between forward and backward pass as any other.
    """
    known = {chain: _Ways(chain) for chain in dict.fromkeys(chains)}
    ways = [known[chain] for chain in chains]
    least: tuple[float, list[_Rest]] | None = None
    for held in sorted({rest.held for one in ways for rest in one.rests}):
        chosen = [min((rest for rest in one.rests if rest.held <= held), key=_peak, default=None) for one in ways]
        rests = [rest for rest in chosen if rest is not None]
        if len(rests) == len(ways):
            budget = (in_flight - 1) * max(rest.held for rest in rests) + max(rest.peak for rest in rests)
            if least is None or budget < least[0]:
                least = budget, rests
    assert least is not None
    return least[0], tuple(one.sequence(rest) for one, rest in zip(ways, least[1], strict=True))


def _peak(rest: _Rest) -> float:
    return rest.peak


class _Ways:
    """All ways to run *chain* of which none needs less than another: *rests*, the input of the chain included."""

    def __init__(self, chain: Chain) -> None:
        self._length, self._found = len(chain), Found()
        for length in range(len(chain)):
            for first in range(1, len(chain) - length + 1):
                self._found[first, first + length] = min(_options(chain, first, first + length, self._found))
        rests: dict[int, list[_Rest]] = {len(chain) + 1: [_Rest(0.0, 0.0)]}
        for first in range(len(chain), 0, -1):
            rests[first] = _undominated(_rests(chain, first, self._found, rests))
        given = chain.input_bytes
        self.rests = [_Rest(given + rest.held, given + rest.peak, rest.kept) for rest in rests[1]]

    def sequence(self, rest: _Rest) -> ChainSequence:
        """The sequence of one of the *rests*."""
        return _sequence(rest.kept, self._found, self._length)


def _options(chain: Chain, first: int, last: int, found: Found) -> Iterator[tuple[float, int]]:
    """(peak, choice) of each way to begin the segment."""
    rest = chain.layers[first - 1].tape + found[first + 1, last][0] if first < last else 0.0
    yield max(_saving(chain, first, chain.gradient(last)), rest), STAYS
    for kept, peak in _advancing(chain, first, last - 1, chain.gradient(last)):
        yield max(peak, chain.activation(kept) + found[kept + 1, last][0], found[first, kept][0]), kept


def _rests(chain: Chain, first: int, found: Found, rests: dict[int, list[_Rest]]) -> Iterator[_Rest]:
    """Each way to run layers *first* ... L, with each way to run those behind its first choice."""
    tape, end = chain.layers[first - 1].tape, len(chain)
    for rest in rests[first + 1]:
        peak = max(_saving(chain, first, 0.0), tape + rest.peak, tape + chain.gradient(end) if first == end else 0.0)
        yield _Rest(tape + rest.held, peak, (STAYS, *rest.kept))
    for kept, peak in _advancing(chain, first, end, 0.0):
        stored = chain.activation(kept) if kept < end else 0.0
        turn = chain.activation(end) + chain.gradient(end) if kept == end else 0.0
        for rest in rests[kept + 1]:
            most = max(peak, turn, stored + rest.peak, found[first, kept][0])
            yield _Rest(stored + rest.held, most, (kept, *rest.kept))


def _saving(chain: Chain, number: int, gradient: float) -> float:
    """The peak while layer *number* saves its tape beside *gradient* bytes, and while its backward pass runs."""
    layer = chain.layers[number - 1]
    gradients = chain.gradient(number) + chain.gradient(number - 1)
    return layer.tape + max(gradient + layer.forward_extra, gradients + layer.backward_extra)


def _advancing(chain: Chain, first: int, last: int, gradient: float) -> Iterator[tuple[int, float]]:
    """(k, peak of running layers *first* ... k and saving only a_k) for each k until *last*."""
    peak = 0.0
    for kept in range(first, last + 1):
        layer = chain.layers[kept - 1]
        before = 0.0 if kept == first else chain.activation(kept - 1)
        peak = max(peak, before + layer.activation + gradient + layer.forward_extra)
        yield kept, peak


def _undominated(rests: Iterable[_Rest]) -> list[_Rest]:
    """Those of *rests* than which none has less of both."""
    best: list[_Rest] = []
    for rest in sorted(rests):
        if not best or rest.peak < best[-1].peak:
            best.append(rest)
    return best


def _sequence(choices: Iterable[int], found: Found, length: int) -> ChainSequence:
    """The sequence with these *choices* in the forward pass of all *length* layers."""
    forward: list[ChainOperation] = []
    backward: list[list[ChainOperation]] = []
    first = 1
    for kept in choices:
        last = first if kept == STAYS else kept
        if kept == STAYS:
            forward.append(ChainOperation(Kind.SAVE, first))
            backward.append([ChainOperation(Kind.BACKWARD, first)])
        else:
            forward += advance(first, kept)
            backward.append(list(_operations(found, first, kept)))
        first = last + 1
    assert first == length + 1
    return ChainSequence((*forward, TURN, *(operation for part in reversed(backward) for operation in part)))


def _operations(found: Found, first: int, last: int) -> Iterator[ChainOperation]:
    kept = found[first, last][1]
    if kept == STAYS:
        yield ChainOperation(Kind.SAVE, first)
        if first < last:
            yield from _operations(found, first + 1, last)
        yield ChainOperation(Kind.BACKWARD, first)
        return
    yield from advance(first, kept)
    yield from _operations(found, kept + 1, last)
    yield from _operations(found, first, kept)


HEIGHTS = 128
"""Values of h that are tried at most."""

SAVES = 0
"""The choice that a layer saves its tape; any other is k: the activation a_k is stored next."""


def optimal(chain: Chain, budget: float, in_flight: int = 1) -> ChainSequence:
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


def optimal_together(chains: Several[Chain], budget: float, in_flight: int = 1) -> tuple[ChainSequence, ...]:
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
    # rounding to slots must not make it slower than what is known to fit
    found = [slowest, tuple(fixed_sequence("full", [True] * len(chain)) for chain in chains)]
    total = np.sum([programme.seconds for programme in programmes], axis=0)
    if np.isfinite(total).any():
        held = int(total.argmin())
        found.append(tuple(programme.sequence(held) for programme in programmes))
    return min(found, key=lambda sequences: _seconds_within(sequences, chains, budget, in_flight))


def _seconds_within(sequences: Several[ChainSequence], chains: Several[Chain], budget: float, in_flight: int) -> float:
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

    def sequence(self, held: int) -> ChainSequence:
        """The fastest sequence with h of that index."""
        forward: list[ChainOperation] = []
        backward: list[tuple[ChainOperation, ...]] = []
        first, stored = 1, self._begin
        while first <= self._length:
            kept = int(self._choices[first - 1][held, stored])
            if kept == SAVES:
                forward.append(ChainOperation(Kind.SAVE, first))
                backward.append((ChainOperation(Kind.BACKWARD, first),))
                first, stored = first + 1, stored + self._segments.tape[first]
            else:
                forward += advance(first, kept)
                backward.append(tuple(self._segments.operations(first, kept, int(self._room[held, stored]))))
                first, stored = kept + 1, stored + self._stored(kept)
        return ChainSequence((*forward, TURN, *(operation for part in reversed(backward) for operation in part)))

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
