"""The pattern of most orders: warm-up forwards, then forwards and backwards alternately, then the other backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.schedule.order import Action


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int) -> tuple[Action, ...]:
    """*warm_up* forwards (or all), then forwards and backwards alternately, then the other backwards."""
    warm_up = min(warm_up, len(forwards))
    row = list(forwards[:warm_up])
    for pair in zip(forwards[warm_up:], backwards, strict=False):
        row += pair
    return (*row, *backwards[len(forwards) - warm_up :])


def in_turn(phase: str, stages: Sequence[int], micro_batches: int, at_once: int) -> Iterator[Action]:
    """*phase* on one of *stages* after the other, *at_once* micro-batches at a time."""
    for first in range(0, micro_batches, at_once):
        for stage in stages:
            yield from (Action(phase, stage, i) for i in range(first, min(first + at_once, micro_batches)))
