"""The fastest plan of a chain that keeps, runs again or copies to the host what the forward pass makes.

As in POFO (Beaumont, Eyraud-Dubois and Shilova 2021, "Efficient combination of rematerialization and offloading for
training DNNs", NeurIPS), a dynamic programme finds the plan. It is optimal in this class of plans:

- The forward pass cuts the chain into blocks. A block is one layer that saves its tape, or several layers of which only
  the input stays. The backward pass runs these again with the best sequence of `Segments` in the memory that is left.
- What stays of a block may be copied to the host when the block ends. Until the copy has ended, the blocks of its
  *window* run; the next block waits for it. The copy back begins when the backward pass reaches the window, and must
  have ended when this leaves it. Windows do not overlap, but the last block of a window may be copied next.

So the forward pass of a window takes the longer of computation and copy, and so does its backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from simulator import lookup
from workloads.memory.chains.chain import Chain
from workloads.memory.chains.combined.tables import SAVED, Tables
from workloads.memory.chains.segments import Segments, advance
from workloads.memory.chains.sequence import ACTIVATION, TAPE, TURN, Kind, Operation, Sequence
from workloads.memory.chains.slots import EXACT, Slots, slots_of

COMPILED = "workloads.memory.chains.combined.compiled"
"""The module with the loops. It is imported when a plan is made: compilation takes seconds the first time."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a plan may do.

    *again*: blocks may be run ``nested`` (any number of times), ``once`` each, or ``never`` again. *inputs*: the inputs
    of such blocks may be copied to the host; tapes always may.
    """

    again: str = "nested"
    inputs: bool = True


@dataclass(frozen=True, slots=True)
class _Block:
    """A block with its *room*; *window*: the last layer of the window of its copy, 0 without one."""

    kind: int
    first: int
    last: int
    room: int
    window: int = 0

    @property
    def item(self) -> Operation:
        """What stays of it, as a copy to the host."""
        if self.kind == SAVED:
            return Operation(Kind.OFFLOAD, self.first, TAPE)
        return Operation(Kind.OFFLOAD, self.first - 1, ACTIVATION)


class Programme:
    """The programme for *chain* with copies of *bandwidth* bytes/s; *least_left* slots must be free at the turn.

    *known*: seconds of a plan that is known; no slower one is looked for.
    """

    def __init__(
        self,
        chain: Chain,
        slots: Slots,
        bandwidth: float,
        rules: Rules,
        *,
        least_left: int = 0,
        known: float = inf,
    ) -> None:
        self._chain, self._slots, self._rules, self._longest = chain, slots, rules, known / 2
        self._segments = Segments(chain, slots)
        self._tables = self._filled(bandwidth)
        self._compiled = lookup.module(COMPILED)
        self._rest, self._rest_choices, _, self._away_choices = self._compiled.solve(self._tables, least_left)
        self._begin = slots.count - self._segments.activation[0]

    @property
    def seconds(self) -> float:
        """Seconds of the fastest plan; infinite if none fits."""
        if self._begin < 0:
            return inf
        return float(self._rest[1, self._begin] + self._tables.until[-1])

    def sequence(self) -> Sequence:
        """The fastest plan."""
        blocks = list(self._blocks())
        ends = {block.window: block.item for block in blocks if block.window}
        forward: list[Operation] = []
        backward: list[list[Operation]] = []
        for block in blocks:
            saved = block.kind == SAVED
            forward += [Operation(Kind.SAVE, block.first)] if saved else advance(block.first, block.last)
            item = ends.get(block.last)
            behind: list[Operation] = []
            if item:
                forward.append(Operation(Kind.WAIT, item.layer, item.tensor))
                behind.append(Operation(Kind.PREFETCH, item.layer, item.tensor))
            if block.window:
                forward.append(block.item)
            behind += [Operation(Kind.BACKWARD, block.first)] if saved else self._again(block)
            backward.insert(0, behind)
        return Sequence((*forward, TURN, *(operation for part in backward for operation in part)))

    def _again(self, block: _Block) -> Iterator[Operation]:
        if self._rules.again == "nested":
            return self._segments.operations(block.first, block.last, block.room)
        layers = range(block.first, block.last + 1)
        forward = [Operation(Kind.SAVE, number) for number in layers]
        return iter([*forward, *(Operation(Kind.BACKWARD, number) for number in reversed(layers))])

    def _blocks(self) -> Iterator[_Block]:
        """The blocks of the fastest plan."""
        first, room = 1, self._begin
        while first <= len(self._chain):
            last, choice = map(int, self._rest_choices[first, room])
            kind = choice % 2
            if choice < 2:
                yield _Block(kind, first, last, room)
                first, room = last + 1, room - self._taken(kind, first, last)
                continue
            block = _Block(kind, first, last, room)
            while choice >= 2:
                room += self._segments.activation[block.first - 1] - self._segments.activation[block.last]
                within, closing, choice, taken = self._window(block, room)
                yield replace(block, window=closing.last)
                yield from within
                block, room = closing, room - taken
            yield block
            first, room = block.last + 1, room - self._taken(block.kind, block.first, block.last)

    def _window(self, block: _Block, whole: int) -> tuple[list[_Block], _Block, int, int]:
        """The window of the copy of *block*: its blocks; the last one apart, its choice, and what the others take.

        *whole*: the room behind *block* once the copy has ended.
        """
        begin, number = block.last + 1, self._number(block)
        room = whole - int(self._tables.loads[begin, number])
        first, last, choice, taken = map(int, self._away_choices[begin, number, whole])
        within: list[_Block] = []
        if first > begin:
            _, choices = self._compiled.inside(self._tables, begin, first)
            end, before = first - 1, taken
            while end >= begin:
                one, kind = divmod(int(choices[end - begin + 1, room, before]), 2)
                before -= self._taken(kind, one, end)
                within.insert(0, _Block(kind, one, end, room - before))
                end = one - 1
        return within, _Block(choice % 2, first, last, room - taken), choice, taken

    def _number(self, block: _Block) -> int:
        tables = self._tables
        return int(
            tables.saved_load[block.first] if block.kind == SAVED else tables.again_load[block.first, block.last]
        )

    def _taken(self, kind: int, first: int, last: int) -> int:
        if kind == SAVED:
            return int(self._tables.rest[first] + self._tables.activation[first])
        return int(self._tables.activation[last]) if last < len(self._chain) else 0

    def _filled(self, bandwidth: float) -> Tables:
        chain, slots, segments = self._chain, self._slots, self._segments
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
        return Tables(
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
        chain, count, segments = self._chain, self._slots.count, self._segments
        length = len(chain)
        found = np.full((length + 1, length + 1, count + 1), inf)
        if self._rules.again == "never":
            return found
        for first in range(1, length + 1):
            peaks = segments.peaks_advancing(first, length, 0.0)
            end = chain.activation(length) + chain.gradient(length)
            peaks[-1] = max(peaks[-1], self._slots.peak(end))
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
        found = np.full(self._slots.count + 1, seconds, np.float64)
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


MOST, LONG = 300, 24
"""Slots of a programme at most, and layers up to which it has them: its loops take time with the squares of both."""

ROUNDING = 1e-12
"""By which sums of seconds may differ."""


def slots_for(chain: Chain, budget: float) -> Slots:
    """Return the slots for *budget* bytes: `MOST` or down to half of it, the number that rounds sizes up the least.

    Fewer if they are exact, or if the chain has more than `LONG` layers.
    """
    exact = slots_of([chain], budget)
    most = min(MOST, MOST * LONG // len(chain))
    if exact.count <= most:
        return exact
    sizes = [chain.input_bytes]
    for layer in chain.layers:
        sizes += [layer.activation, layer.tape - layer.activation]

    def waste(count: int) -> float:
        slot = budget / count
        return sum(ceil(size / slot - EXACT) * slot - size for size in sizes)

    best = min(range(most, most // 2, -1), key=waste)
    return Slots(budget / best, best)
