"""Recomputation and offloading of a chain within a budget: the fastest of the combined plan and of either alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import suppress
from dataclasses import replace
from math import inf

from workloads.memory.chains.chain import Chain
from workloads.memory.chains.combined.execution import executed_with_copies
from workloads.memory.chains.combined.filling import Rules
from workloads.memory.chains.combined.programme import Programme, slots_for
from workloads.memory.chains.least_memory import least_together
from workloads.memory.chains.methods import fixed_sequence, saving_all, swapping_all
from workloads.memory.chains.optimal import BudgetError, optimal_together
from workloads.memory.chains.sequence import Sequence

POFO = Rules()
"""Any block may be run again, what stays of any may be copied."""

SWAPPED = Rules(again="never")
"""Tapes stay or are copied."""

KARMA = Rules(again="once", inputs=False)
"""Each block of layers stays, is copied, or is run again from its input (Wahib et al. 2020, "Scaling distributed deep
learning workloads beyond the memory capacity with KARMA", SC20, arXiv:2008.11421)."""

Plans = tuple[Sequence, ...]
"""A sequence for each of several chains."""

HEIGHTS = 12
"""Shares of the budget that are tried for what each micro-batch in flight holds, if there are several."""


def combined(chain: Chain, budget: float, bandwidth: float, in_flight: int = 1, rules: Rules = POFO) -> Sequence:
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
        plans: dict[Chain, Sequence] = {}
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
