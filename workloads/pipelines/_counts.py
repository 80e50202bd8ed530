"""The counts that an order cannot take, refused with the nearest that it can."""

from __future__ import annotations

from simulator.errors import ScheduleError


def at_least_one(**counts: int) -> None:
    """Raise `ScheduleError` for the first of *counts* below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ScheduleError(f"{name} = {count}: must be 1 or more")


def in_rounds(order: str, stages: int, micro_batches: int) -> int:
    """How many micro-batches pass one virtual stage before the next one's turn: as near above *stages* as fits.

    torch's rule: max(1, micro-batches // stages) equal rounds. Raises `ScheduleError` if they do not come out equal.
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
    """Raise `ScheduleError` unless there are two virtual stages a rank, as a V has."""
    if virtual_stages != 2:
        raise ScheduleError(f"virtual_stages = {virtual_stages}: {order} lays its stages in a V; it takes exactly 2")


def uneven(stages: int, micro_batches: int) -> tuple[str, ...]:
    """The note that an interleaved order carries where Megatron-LM would refuse it."""
    if micro_batches % stages == 0:
        return ()
    note = (
        f"{micro_batches} micro-batches are no multiple of {stages} stages: torch runs this order, Megatron-LM does not"
    )
    return (note,)


def _rounds(stages: int, micro_batches: int) -> int:
    return max(1, micro_batches // stages)
