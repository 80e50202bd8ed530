"""Recomputation and offloading together: the fastest plan for a chain within a budget of memory on the GPU.

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

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import suppress
from dataclasses import replace
from math import ceil, inf

from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.memory.chain import EXACT, Chain, Segments, Slots, slots_of
from clustersim.workloads.memory.chain_execution import executed_with_copies
from clustersim.workloads.memory.chain_sequence import (
    ACTIVATION,
    TAPE,
    TURN,
    ChainOperation,
    ChainSequence,
    Kind,
    advance,
    fixed_sequence,
    saving_all,
    swapping_all,
)
from clustersim.workloads.memory.offload_and_recompute_tables import SAVED, Filling, Rules
from clustersim.workloads.memory.optimal_checkpointing import BudgetError, least_together, optimal_together

COMPILED = "clustersim.workloads.memory.offload_and_recompute_compiled"
"""The module with the loops. It is imported when a plan is made: compilation takes seconds the first time."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block with its *room*; *window*: the last layer of the window of its copy, 0 without one."""

    kind: int
    first: int
    last: int
    room: int
    window: int = 0

    @property
    def item(self) -> ChainOperation:
        """What stays of it, as a copy to the host."""
        if self.kind == SAVED:
            return ChainOperation(Kind.OFFLOAD, self.first, TAPE)
        return ChainOperation(Kind.OFFLOAD, self.first - 1, ACTIVATION)


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
        self._chain, self._rules = chain, rules
        self._segments = Segments(chain, slots)
        self._tables = Filling(self._segments, rules, known).tables(bandwidth)
        self._compiled = lookup.module(COMPILED)
        self._rest, self._rest_choices, _, self._away_choices = self._compiled.solve(self._tables, least_left)
        self._begin = slots.count - self._segments.activation[0]

    @property
    def seconds(self) -> float:
        """Seconds of the fastest plan; infinite if none fits."""
        if self._begin < 0:
            return inf
        return float(self._rest[1, self._begin] + self._tables.until[-1])

    def sequence(self) -> ChainSequence:
        """The fastest plan."""
        blocks = list(self._blocks())
        ends = {block.window: block.item for block in blocks if block.window}
        forward: list[ChainOperation] = []
        backward: list[list[ChainOperation]] = []
        for block in blocks:
            saved = block.kind == SAVED
            forward += [ChainOperation(Kind.SAVE, block.first)] if saved else advance(block.first, block.last)
            item = ends.get(block.last)
            behind: list[ChainOperation] = []
            if item:
                forward.append(ChainOperation(Kind.WAIT, item.layer, item.tensor))
                behind.append(ChainOperation(Kind.PREFETCH, item.layer, item.tensor))
            if block.window:
                forward.append(block.item)
            behind += [ChainOperation(Kind.BACKWARD, block.first)] if saved else self._again(block)
            backward.insert(0, behind)
        return ChainSequence((*forward, TURN, *(operation for part in backward for operation in part)))

    def _again(self, block: _Block) -> Iterator[ChainOperation]:
        if self._rules.again == "nested":
            return self._segments.operations(block.first, block.last, block.room)
        layers = range(block.first, block.last + 1)
        forward = [ChainOperation(Kind.SAVE, number) for number in layers]
        return iter([*forward, *(ChainOperation(Kind.BACKWARD, number) for number in reversed(layers))])

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


MOST, LONG = 300, 24
"""Slots of a programme at most, and layers up to which it has them: its loops take time with the squares of both."""


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


POFO = Rules()
"""Any block may be run again, what stays of any may be copied."""

SWAPPED = Rules(again="never")
"""Tapes stay or are copied."""

KARMA = Rules(again="once", inputs=False)
"""Each block of layers stays, is copied, or is run again from its input (Wahib et al. 2020, "Scaling distributed deep
learning workloads beyond the memory capacity with KARMA", SC20, arXiv:2008.11421)."""

Plans = tuple[ChainSequence, ...]
"""A sequence for each of several chains."""

HEIGHTS = 12
"""Shares of the budget that are tried for what each micro-batch in flight holds, if there are several."""


def combined(chain: Chain, budget: float, bandwidth: float, in_flight: int = 1, rules: Rules = POFO) -> ChainSequence:
    """Return the fastest sequence of *chain*, as `combined_together` does of several."""
    return combined_together([chain], budget, bandwidth, in_flight, rules)[0]


def combined_together(
    chains: Several[Chain], budget: float, bandwidth: float, in_flight: int = 1, rules: Rules = POFO
) -> Plans:
    """Return the fastest sequence of each of *chains*, the stages of one rank, copies of *bandwidth* bytes/s included.

    *budget*: bytes on the GPU. *in_flight* counts the passes of all chains together: one runs at a time, and the others
    hold what they have on the GPU at the turn. Raises `BudgetError` with about the smallest budget that suffices.
    """
    found = _fastest(chains, budget, bandwidth, in_flight, rules)
    if found is None:
        raise BudgetError(budget, _least_budget(chains, bandwidth, in_flight, rules))
    return found


def least_plans(chains: Several[Chain], budget: float, bandwidth: float, in_flight: int, rules: Rules) -> Plans | None:
    """Return a plan within *budget* that takes little memory, without the programme; None if none of a few fits.

    The plans that are tried: all tapes stay, all are copied, each layer is run again, or what takes the least memory
    without copies, as far as *rules* allow them.
    """
    options = [tuple(saving_all(len(chain)) for chain in chains), tuple(swapping_all(len(chain)) for chain in chains)]
    if rules.again != "never":
        options.append(tuple(fixed_sequence("full", [True] * len(chain)) for chain in chains))
    if rules.again == "nested":
        options.append(least_together(chains, in_flight)[1])
    fitting = [one for one in options if _needed(one, chains, bandwidth, in_flight) <= budget * (1 + ROUNDING)]
    return min(fitting, key=lambda one: _needed(one, chains, bandwidth, in_flight), default=None)


def _needed(plans: Plans, chains: Several[Chain], bandwidth: float, in_flight: int) -> float:
    """Bytes on the GPU that *plans* need."""
    runs = [executed_with_copies(one, chain, bandwidth) for one, chain in zip(plans, chains, strict=True)]
    return (in_flight - 1) * max(run.held for run in runs) + max(run.peak for run in runs)


ROUNDING = 1e-12
"""By which sums of bytes may exceed the budget."""


def _fastest(chains: Several[Chain], budget: float, bandwidth: float, in_flight: int, rules: Rules) -> Plans | None:
    """The fastest sequences; None if none fit."""

    def fastest(options: Iterable[Plans]) -> tuple[float, Plans | None]:
        best, found = inf, None
        for plans in options:
            runs = [executed_with_copies(one, chain, bandwidth) for one, chain in zip(plans, chains, strict=True)]
            seconds = sum(run.seconds for run in runs)
            if seconds < best and _needed(plans, chains, bandwidth, in_flight) <= budget * (1 + ROUNDING):
                best, found = seconds, plans
        return best, found

    known, alone = fastest(_without_copies(chains, budget, in_flight, rules))
    if known == sum(chain.seconds for chain in chains):
        return alone
    best, planned = fastest(_planned(chains, budget, bandwidth, in_flight, rules, known))
    return planned if best < known else alone


def _without_copies(chains: Several[Chain], budget: float, in_flight: int, rules: Rules) -> Iterator[Plans]:
    yield tuple(saving_all(len(chain)) for chain in chains)
    if rules.again == "nested":
        with suppress(BudgetError):
            yield optimal_together(chains, budget, in_flight)


def _planned(
    chains: Several[Chain], budget: float, bandwidth: float, in_flight: int, rules: Rules, known: float
) -> Iterator[Plans]:
    """The plans of the programme for each share of the budget that the micro-batches in flight may hold."""
    for share in range(1, HEIGHTS + 1) if in_flight > 1 else (HEIGHTS,):
        plans: dict[Chain, ChainSequence] = {}
        for chain in dict.fromkeys(chains):
            slots = slots_for(chain, budget)
            held = slots.count * share // (HEIGHTS * in_flight)
            room = replace(slots, count=slots.count - (in_flight - 1) * held)
            left = room.count - held if in_flight > 1 else 0
            programme = Programme(chain, room, bandwidth, rules, least_left=left, known=known)
            if programme.seconds < inf:
                plans[chain] = programme.sequence()
        if all(chain in plans for chain in chains):
            yield tuple(plans[chain] for chain in chains)


def _least_budget(chains: Several[Chain], bandwidth: float, in_flight: int, rules: Rules) -> float:
    """About the smallest budget that suffices, at most `NEAR` above it."""
    runs = [executed_with_copies(saving_all(len(chain)), chain, bandwidth) for chain in chains]
    low, high = 0.0, (in_flight - 1) * max(run.held for run in runs) + max(run.peak for run in runs)
    while high - low > NEAR * high:
        middle = (low + high) / 2
        fits = _fastest(chains, middle, bandwidth, in_flight, rules) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


NEAR = 0.01
