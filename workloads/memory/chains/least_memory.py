"""The least memory in which a chain can be run at all, however long it takes, and a sequence that needs no more.

The programmes of `segments` and `optimal` with peaks in place of seconds: the peak of a segment is the highest of its
parts. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from typing import NamedTuple

from workloads.memory.chains.chain import Chain
from workloads.memory.chains.segments import STAYS, advance
from workloads.memory.chains.sequence import TURN, Kind, Operation, Sequence

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


def least_together(chains: Several[Chain], in_flight: int) -> tuple[float, tuple[Sequence, ...]]:
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

    def sequence(self, rest: _Rest) -> Sequence:
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


def _sequence(choices: Iterable[int], found: Found, length: int) -> Sequence:
    """The sequence with these *choices* in the forward pass of all *length* layers."""
    forward: list[Operation] = []
    backward: list[list[Operation]] = []
    first = 1
    for kept in choices:
        last = first if kept == STAYS else kept
        if kept == STAYS:
            forward.append(Operation(Kind.SAVE, first))
            backward.append([Operation(Kind.BACKWARD, first)])
        else:
            forward += advance(first, kept)
            backward.append(list(_operations(found, first, kept)))
        first = last + 1
    assert first == length + 1
    return Sequence((*forward, TURN, *(operation for part in reversed(backward) for operation in part)))


def _operations(found: Found, first: int, last: int) -> Iterator[Operation]:
    kept = found[first, last][1]
    if kept == STAYS:
        yield Operation(Kind.SAVE, first)
        if first < last:
            yield from _operations(found, first + 1, last)
        yield Operation(Kind.BACKWARD, first)
        return
    yield from advance(first, kept)
    yield from _operations(found, kept + 1, last)
    yield from _operations(found, first, kept)
