"""Recomputation and offloading of a chain within a budget: the fastest of the combined plan and of either alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from workloads.memory.chains.chain import Chain
from workloads.memory.chains.combined.execution import executed_with_copies
from workloads.memory.chains.combined.programme import Programme, Rules, slots_for
from workloads.memory.chains.optimal import BudgetError, optimal
from workloads.memory.chains.sequence import TURN, Kind, Operation, Sequence

POFO = Rules()
"""Any block may be run again, what stays of any may be copied."""

SWAPPED = Rules(again="never")
"""Tapes stay or are copied."""

KARMA = Rules(again="once", inputs=False)
"""Each block of layers stays, is copied, or is run again from its input (Wahib et al. 2020, "Scaling distributed deep
learning workloads beyond the memory capacity with KARMA", SC20, arXiv:2008.11421)."""

HEIGHTS = 12
"""Shares of the budget that are tried for what each micro-batch in flight holds, if there are several."""


def combined(chain: Chain, budget: float, bandwidth: float, in_flight: int = 1, rules: Rules = POFO) -> Sequence:
    """Return the fastest sequence of *chain* within *budget* bytes on the GPU, copies of *bandwidth* bytes/s included.

    Of *in_flight* micro-batches one runs at a time, and the others hold what they have on the GPU at the turn. Raises
    `BudgetError` with about the smallest budget that suffices.
    """
    found = _fastest(chain, budget, bandwidth, in_flight, rules)
    if found is None:
        raise BudgetError(budget, least_budget(chain, bandwidth, in_flight, rules))
    return found


ROUNDING = 1e-12
"""By which sums of bytes may exceed the budget."""


def _fastest(chain: Chain, budget: float, bandwidth: float, in_flight: int, rules: Rules) -> Sequence | None:
    """The fastest sequence; None if none fits."""

    def fastest(sequences: Iterable[Sequence]) -> tuple[float, Sequence | None]:
        best, found = inf, None
        for one in sequences:
            run = executed_with_copies(one, chain, bandwidth)
            if run.seconds < best and (in_flight - 1) * run.held + run.peak <= budget * (1 + ROUNDING):
                best, found = run.seconds, one
        return best, found

    known, alone = fastest([saving_all(chain), *_recomputed(chain, budget, in_flight, rules)])
    best, planned = fastest(_planned(chain, budget, bandwidth, in_flight, rules, known))
    return planned if best < known else alone


def _recomputed(chain: Chain, budget: float, in_flight: int, rules: Rules) -> list[Sequence]:
    """The fastest sequence without copies, if there is one and it is allowed."""
    if rules.again != "nested":
        return []
    try:
        return [optimal(chain, budget, in_flight)]
    except BudgetError:
        return []


def _planned(
    chain: Chain, budget: float, bandwidth: float, in_flight: int, rules: Rules, known: float
) -> Iterator[Sequence]:
    """The plan of the programme for each share of the budget that the micro-batches in flight may hold."""
    slots = slots_for(chain, budget)
    for share in range(1, HEIGHTS + 1) if in_flight > 1 else (HEIGHTS,):
        held = slots.count * share // (HEIGHTS * in_flight)
        room = replace(slots, count=slots.count - (in_flight - 1) * held)
        left = room.count - held if in_flight > 1 else 0
        programme = Programme(chain, room, bandwidth, rules, least_left=left, known=known)
        if programme.seconds < inf:
            yield programme.sequence()


def saving_all(chain: Chain) -> Sequence:
    """The sequence that saves every tape on the GPU."""
    numbers = range(1, len(chain) + 1)
    forward = [Operation(Kind.SAVE, number) for number in numbers]
    return Sequence((*forward, TURN, *(Operation(Kind.BACKWARD, number) for number in reversed(numbers))))


def least_budget(chain: Chain, bandwidth: float, in_flight: int, rules: Rules) -> float:
    """Return about the smallest budget that suffices, to 1 %."""
    run = executed_with_copies(saving_all(chain), chain, bandwidth)
    low, high = 0.0, (in_flight - 1) * run.held + run.peak
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        fits = _fastest(chain, middle, bandwidth, in_flight, rules) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high
