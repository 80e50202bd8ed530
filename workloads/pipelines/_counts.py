"""Errors for counts that an order cannot take, with the nearest counts that it can."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from simulator.errors import ScheduleError


def at_least_one(**counts: int) -> None:
    """Raise `ScheduleError` for the first of *counts* below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ScheduleError(f"{name} = {count}: must be 1 or more")


def warm_ups(stages: int, replicas: Sequence[int] | None = None) -> list[int]:
    """By stage, the forwards before the first backward, of all replicas of the stage together.

    *replicas*: the ranks that share the micro-batches of each stage, by default one. A replica needs as many forwards
    as keep the ranks of all later stages busy (msr-fiddle/pipedream, runtime/runtime.py, ``num_warmup_minibatches``).
    With the one after them, the first stage has PipeDream's NOAM micro-batches in flight, ceil(ranks / replicas).

    >>> warm_ups(4), warm_ups(2, [15, 1]), warm_ups(3, [1, 3, 1])
    ([3, 2, 1, 0], [15, 0], [4, 3, 0])
    """
    at_least_one(stages=stages)
    counts = replicas or [1] * stages
    if len(counts) != stages:
        raise ScheduleError(f"{len(counts)} numbers of replicas are given for {stages} pipeline ranks")
    return [ceil(sum(counts[stage + 1 :]) / own) * own for stage, own in enumerate(counts)]


def in_rounds(order: str, stages: int, micro_batches: int) -> int:
    """How many micro-batches pass one virtual stage before the rank goes on to the next one.

    torch's rule: max(1, micro-batches // stages) equal rounds. Raises `ScheduleError` if the rounds are not equal.
    """
    rounds = _rounds(stages, micro_batches)
    if micro_batches % rounds:
        below = next(m for m in range(micro_batches, 0, -1) if m % _rounds(stages, m) == 0)
        above = next(m for m in range(micro_batches, 2 * micro_batches + stages) if m % _rounds(stages, m) == 0)
        raise ScheduleError(
            f"micro_batches = {micro_batches}: {order} over {stages} stages needs {rounds} equal rounds; "
            f"try {below} or {above}"
        )
    return micro_batches // rounds


def exactly_two(order: str, virtual_stages: int) -> None:
    """Raise `ScheduleError` unless a rank has two virtual stages, as a V has."""
    if virtual_stages != 2:
        raise ScheduleError(f"virtual_stages = {virtual_stages}: {order} lays its stages in a V; it takes exactly 2")


def uneven(stages: int, micro_batches: int) -> tuple[str, ...]:
    """The note of an interleaved order that Megatron-LM would refuse."""
    if micro_batches % stages == 0:
        return ()
    note = (
        f"{micro_batches} micro-batches are no multiple of {stages} stages: torch runs this order, Megatron-LM does not"
    )
    return (note,)


def _rounds(stages: int, micro_batches: int) -> int:
    return max(1, micro_batches // stages)
