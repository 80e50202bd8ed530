"""A chain in arrays, as the compiled programme reads it: what each block takes, how long it and its copy last."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.memory.chain import Segments

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SAVED, AGAIN = 0, 1


class ChainTables(NamedTuple):
    """A chain in arrays. All are by layer, with an unused entry at 0, unless said otherwise.

    *until*: seconds of the forward passes up to a layer. *backward*: seconds of a backward pass; *peak*: the room that
    a layer needs to save its tape. *again*: seconds of a block that is run again, by first and last layer and room;
    infinite where it does not fit. *activation*: slots of a_l, from l = 0; *rest*: slots of a tape without a_l.
    *loads*, *seconds*: slots and seconds of the copies that may begin with a layer, by layer and number. *saved_load*,
    *again_load*: the number of the copy of a block that begins with that layer, and of a block by first and last
    layer; -1 if it may not be copied. *limit*: the seconds of all backward passes of a plan that is known; parts of
    plans that cannot be faster are left out.
    """

    until: Floats
    backward: Floats
    peak: Integers
    again: Floats
    activation: Integers
    rest: Integers
    loads: Integers
    seconds: Floats
    saved_load: Integers
    again_load: Integers
    limit: float


ROUNDING = 1e-12
"""By which sums of seconds may differ."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a plan may do.

    *again*: blocks may be run ``nested`` (any number of times), ``once`` each, or ``never`` again. *inputs*: the inputs
    of such blocks may be copied to the host; tapes always may.
    """

    again: str = "nested"
    inputs: bool = True


class Filling:
    """Fills the tables of the chain of *segments*; *known*: seconds of a plan that is known."""

    def __init__(self, segments: Segments, rules: Rules, known: float) -> None:
        self._chain, self._segments, self._rules, self._longest = segments.chain, segments, rules, known / 2

    def tables(self, bandwidth: float) -> ChainTables:
        """The chain in arrays, with copies of *bandwidth* bytes/s."""
        chain, slots, segments = self._chain, self._segments.slots, self._segments
        length = len(chain)
        rest = [0, *(slots.stored(layer.tape - layer.activation) for layer in chain.layers)]
        peaks = [0] + [
            max(
                segments.peak_saving(n, chain.gradient(length) if n == length else 0.0),
                rest[n] + segments.activation[n],
            )
            for n in range(1, length + 1)
        ]
        saved, again, loads, seconds = self._loads(rest, bandwidth)
        return ChainTables(
            until=np.cumsum([0.0, *(layer.forward for layer in chain.layers)]),
            backward=np.array([0.0, *(layer.backward for layer in chain.layers)]),
            peak=np.array(peaks, np.int64),
            again=self._running_again(),
            activation=np.array(segments.activation, np.int64),
            rest=np.array(rest, np.int64),
            loads=loads,
            seconds=seconds,
            saved_load=saved,
            again_load=again,
            limit=(2 * self._longest - sum(layer.forward for layer in chain.layers)) * (1 + ROUNDING),
        )

    def _running_again(self) -> np.ndarray:
        """``Tables.again``: by first and last layer and room."""
        chain, count, segments = self._chain, self._segments.slots.count, self._segments
        length = len(chain)
        found = np.full((length + 1, length + 1, count + 1), inf)
        if self._rules.again == "never":
            return found
        for first in range(1, length + 1):
            peaks = segments.peaks_advancing(first, length, 0.0)
            end = chain.activation(length) + chain.gradient(length)
            peaks[-1] = max(peaks[-1], self._segments.slots.peak(end))
            for last, peak in enumerate(peaks, first):
                found[first, last] = (
                    segments.seconds(first, last) if self._rules.again == "nested" else self._once(first, last)
                )
                found[first, last, :peak] = inf
        return found

    def _once(self, first: int, last: int) -> np.ndarray:
        """Seconds of running layers *first* ... *last* again and then backward, all tapes saved; by room."""
        layers = self._chain.layers[first - 1 : last]
        seconds = (
            sum(layer.forward + layer.backward for layer in layers) + layers[-1].final_forward - layers[-1].forward
        )
        held, peak, gradient = 0, 0, self._chain.gradient(last)
        for number in range(first, last + 1):
            peak = max(peak, held + self._segments.peak_saving(number, gradient))
            held += self._segments.tape[number]
        found = np.full(self._segments.slots.count + 1, seconds, np.float64)
        found[:peak] = inf
        return found

    def _loads(self, rest: list[int], bandwidth: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """``saved_load``, ``again_load``, ``loads`` and ``seconds`` of the tables."""
        chain, length, activation = self._chain, len(self._chain), self._segments.activation
        known: list[dict[tuple[int, float], int]] = [{} for _ in range(length + 2)]
        saved, again = np.full(length + 1, -1, np.int64), np.full((length + 1, length + 1), -1, np.int64)
        for first in range(1, length):
            own = chain.layers[first - 1].tape - chain.activation(first) + chain.activation(first - 1)
            if own / bandwidth <= self._longest:
                saved[first] = _numbered(known[first + 1], rest[first] + activation[first - 1], own / bandwidth)
            copy = chain.activation(first - 1) / bandwidth
            if self._rules.inputs and 0.0 < copy <= self._longest:
                for last in range(first, length):
                    again[first, last] = _numbered(known[last + 1], activation[first - 1], copy)
        most = max(map(len, known))
        loads, seconds = np.full((length + 2, most), -1, np.int64), np.zeros((length + 2, most))
        for begin, own_loads in enumerate(known):
            for (slots, copy), number in own_loads.items():
                loads[begin, number], seconds[begin, number] = slots, copy
        return saved, again, loads, seconds


def _numbered(known: dict[tuple[int, float], int], slots: int, seconds: float) -> int:
    """The number of the load of *slots* and *seconds* in *known*."""
    return known.setdefault((slots, seconds), len(known))
