"""What rows of orders are made of: checked counts, alternation, rows of a V, split backward passes, and optimizer steps
of asynchronous orders.

A row of such an order is a list of passes: a phase and a leg of the V (0 down, 1 up), as in ``F0``. Each pass takes the
next micro-batch of its kind.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241): only the gradient of the input is awaited
by another stage.

Asynchronous orders: optimizer steps within them, and the global batches that show their steady state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, gcd
from typing import NamedTuple

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Action, Order


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


class Row:
    """The row of *rank* of *stages*, built pass by pass."""

    def __init__(self, rank: int, stages: int) -> None:
        self.legs = (rank, 2 * stages - 1 - rank)
        self.actions: list[Action] = []
        self.overlapped: list[Action] = []
        self._inputs: Counter[tuple[str, int]] = Counter()
        self._pending: list[Action] = []

    def run(self, times: int, *passes: str) -> None:
        """Append *passes*, *times* times.

        ``F1`` is a forward on the way up. ``F0+B1`` is a forward and a backward together. ``W`` is the weights' half of
        the oldest I without one; ``W0`` is that of one leg.
        """
        for _ in range(times):
            for one in passes:
                if one.startswith("W"):
                    self._weights(self.legs if one == "W" else (self.legs[int(one[1])],))
                    continue
                together = [self._next(single[0], int(single[1])) for single in one.split("+")]
                self.actions += together
                self.overlapped += together[:-1]

    def _next(self, phase: str, leg: int) -> Action:
        counted = ("F" if phase == "F" else "backward", leg)
        action = Action(phase, self.legs[leg], self._inputs[counted])
        self._inputs[counted] += 1
        if phase == "I":
            self._pending.append(action._replace(phase="W"))
        return action

    def _weights(self, stages: tuple[int, ...]) -> None:
        weights = next(action for action in self._pending if action.stage in stages)
        self._pending.remove(weights)
        self.actions.append(weights)


def split_backward(order: Order, delays: Sequence[int] | None = None) -> Order:
    """*order* with an I and a W for each B; in row r a W follows the I that is *delays[r]* after its own.

    Without *delays* each W follows its own I. Those left at the end of a row, or before an optimizer step, follow
    there. A backward that runs together with a forward stays whole. Raises `ScheduleError` unless each row has a delay.

    >>> split_backward(Order.parse("0F0,0F1,0B0,0B1"), [1]).csv()
    '0F0,0F1,0I0,0I1,0W0,0W1\\n'
    """
    delays = delays if delays is not None else [0] * len(order.rows)
    if len(delays) != len(order.rows):
        raise ScheduleError(f"{len(delays)} delays are given for an order of {len(order.rows)} rows; give one for each")
    rows = (_split(row, order.overlapped, delay) for row, delay in zip(order.rows, delays, strict=True))
    return replace(order, rows=tuple(rows))


def _split(row: Sequence[Action], overlapped: frozenset[Action], delay: int) -> tuple[Action, ...]:
    new: list[Action] = []
    pending: deque[Action] = deque()
    for before, action in zip((None, *row), row, strict=False):
        if action.phase == "B" and before not in overlapped:
            new.append(action._replace(phase="I"))
            pending.append(action._replace(phase="W"))
            if len(pending) > delay:
                new.append(pending.popleft())
            continue
        if action.phase == "O":
            new += pending
            pending.clear()
        new.append(action)
    return (*new, *pending)


def updated(order: Order, every: int, replicas: Sequence[int] | None = None) -> Order:
    """*order* with an optimizer step of a stage after every *every* backwards of the stage.

    *replicas*: the ranks that share the micro-batches of each stage, by default one. Each makes a step after its last
    backward among those.
    """
    rows = []
    for row, count in zip(order.rows, replicas or [1] * len(order.rows), strict=True):
        new = []
        for action in row:
            new.append(action)
            if action.phase == "B" and action.micro_batch is not None and action.micro_batch % every >= every - count:
                new.append(Action("O", action.stage, action.micro_batch))
        rows.append(tuple(new))
    return replace(order, rows=tuple(rows))


class SteadyState(NamedTuple):
    """The first *filling* global batches fill the pipeline, *measured* ones follow, the last *draining* drain it."""

    filling: int
    measured: int
    draining: int

    @property
    def batches(self) -> int:
        """All of them."""
        return self.filling + self.measured + self.draining


def steady_state(stages: int, micro_batches: int, steps: int = 1, replicas: Sequence[int] | None = None) -> SteadyState:
    """The batches, of *micro_batches* each, that an order over *stages* runs through to measure at least *steps*.

    *replicas*: the ranks that share the micro-batches of each stage, by default one. Stage 0 has so many micro-batches
    in flight as it runs forward before its first backward, and one more for each replica. The measured micro-batches
    are a multiple of these: where messages take time, 1F1B repeats after so many. (Unequal stages with such messages
    may repeat after fewer; the mean is then a little off, less with more *steps*.)

    Until the measured ones are over, every stage must do what it would do in an endless run. All micro-batches in
    flight but one, and one for each further replica of a stage, may be ahead of the one that stage 0 runs backward.
    After the last forward pass, a stage may run as many backward passes early. So at least twice as many micro-batches
    drain the pipeline.

    >>> steady_state(4, 8), steady_state(4, 6, steps=3)
    (SteadyState(filling=2, measured=1, draining=1), SteadyState(filling=2, measured=4, draining=1))
    """
    shared = replicas or [1] * stages
    in_flight = warm_ups(stages, shared)[0] + shared[0]
    whole = in_flight // gcd(in_flight, micro_batches)
    ahead = ceil(2 * (in_flight + max(shared) - 2) / micro_batches)
    return SteadyState(ahead + 1, ceil(steps / whole) * whole, ahead)


def repeated(order: Order, batches: int) -> Order:
    """*order* of one global batch, *batches* times over, each with an optimizer step of every stage at its end.

    >>> print(repeated(Order.parse("0F0,0F1,0B0,0B1"), 2).csv(), end="")
    0F0,0F1,0B0,0B1,0O1,0F2,0F3,0B2,0B3,0O3
    """
    each = order.micro_batches

    def of_batch(action: Action, batch: int) -> Action:
        assert action.micro_batch is not None
        return action._replace(micro_batch=action.micro_batch + batch * each)

    rows = []
    for row in order.rows:
        stages = sorted({action.stage for action in row})
        new: list[Action] = []
        for batch in range(batches):
            new += [of_batch(action, batch) for action in row]
            new += [Action("O", stage, (batch + 1) * each - 1) for stage in stages]
        rows.append(tuple(new))
    overlapped = frozenset(of_batch(action, batch) for batch in range(batches) for action in order.overlapped)
    return replace(order, rows=tuple(rows), overlapped=overlapped)
