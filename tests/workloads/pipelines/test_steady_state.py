"""The batches that fill and drain a pipeline without a flush are enough: the measured ones run as in an endless run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.workloads.pipelines._row_patterns import steady_state
from clustersim.workloads.pipelines.pipedream import pipedream

LONGER = 12
"""Micro-batches that an endless run has at least beyond one with few: more than are in flight."""


def begins(order: Order, seconds: Sequence[Mapping[str, int]]) -> dict[Action, int]:
    """When each pass begins if messages take no time; *seconds*: of F and B by stage."""
    begun: dict[Action, int] = {}
    ended: dict[tuple[str, int, int | None], int] = {}
    rows = [[action for action in row if action.phase != "O"] for row in order.rows]
    place, free = [0] * len(rows), [0] * len(rows)
    while any(at < len(row) for at, row in zip(place, rows, strict=True)):
        for stage, row in enumerate(rows):
            while place[stage] < len(row):
                action = row[place[stage]]
                before = stage - 1 if action.phase == "F" else stage + 1
                given_at = ended.get((action.phase, before, action.micro_batch)) if 0 <= before < len(rows) else 0
                if given_at is None:
                    break
                begun[action] = max(free[stage], given_at)
                free[stage] = begun[action] + seconds[stage][action.phase]
                ended[action.phase, stage, action.micro_batch] = free[stage]
                place[stage] += 1
    return begun


@settings(max_examples=100)
@given(st.data(), st.integers(1, 5), st.integers(1, 6), st.integers(1, 3))
def test_until_the_measured_batches_are_over_all_stages_do_what_they_would_do_endlessly(
    data: st.DataObject, stages: int, micro_batches: int, steps: int
) -> None:
    times = st.fixed_dictionaries({"F": st.integers(1, 3), "B": st.integers(1, 4)})
    seconds = data.draw(st.lists(times, min_size=stages, max_size=stages))
    window = steady_state(stages, micro_batches, steps)
    assert window.measured == next(n for n in count(steps) if n * micro_batches % stages == 0)
    few = begins(pipedream(stages, window.batches * micro_batches), seconds)
    many = begins(pipedream(stages, window.batches * micro_batches + LONGER), seconds)
    last = Action("B", 0, (window.filling + window.measured) * micro_batches - 1)
    until = many[last] + seconds[0]["B"]
    assert {one: begin for one, begin in many.items() if begin < until}.items() <= few.items()


def test_each_stage_drains_twice_as_many_micro_batches_as_are_ahead_of_the_first_one() -> None:
    """Five stages, one micro-batch a batch: the last stage is four ahead and runs four backward passes early."""
    assert steady_state(5, 1).draining == 8
    assert [steady_state(stages, 1).draining for stages in (1, 2, 3, 4)] == [0, 2, 4, 6]
    # 30 are in flight on 15 ranks and then one: 29 may be ahead, and one more for each of the 14 further replicas
    assert steady_state(2, 32, replicas=[15, 1]).draining == ceil(2 * (29 + 14) / 32)
