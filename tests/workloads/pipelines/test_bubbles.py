"""Every order in unit time: the papers' closed forms of bubbles and of micro-batches in flight, exactly."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.schedule.pipeline_order import Action, Order, bubble_fraction, in_flight, slots
from clustersim.workloads.pipelines import pipedream, pipedream_2bw
from clustersim.workloads.pipelines.dual_pipe_v import dual_pipe_v
from clustersim.workloads.pipelines.gpipe import gpipe
from clustersim.workloads.pipelines.interleaved import interleaved
from clustersim.workloads.pipelines.interleaved_zero_bubble import interleaved_zero_bubble
from clustersim.workloads.pipelines.looped_bfs import looped_bfs
from clustersim.workloads.pipelines.naive import naive
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.pipelines.zero_bubble_h1 import zero_bubble_h1
from clustersim.workloads.pipelines.zero_bubble_h2 import zero_bubble_h2
from clustersim.workloads.pipelines.zero_bubble_v import zero_bubble_v

EQUAL = {"F": 1, "I": 1, "W": 1, "B": 2}
counts = st.integers(1, 8)
seconds = st.integers(1, 100)


def bubble(order: Order, durations: Mapping[str, int]) -> Fraction:
    """What is idle of the whole, without rounding."""
    rows = slots(order, durations)
    whole = len(rows) * Fraction(max(row[-1].end for row in rows))
    exact = 1 - Fraction(sum(slot.end - slot.begin for row in rows for slot in row)) / whole
    assert bubble_fraction(rows) == pytest.approx(float(exact), abs=1e-12)
    return exact


def own_idle(order: Order, durations: Mapping[str, int]) -> list[float]:
    """What each row loses between its own first and last action."""
    return [row[-1].end - row[0].begin - sum(s.end - s.begin for s in row) for row in slots(order, durations)]


@given(counts, st.integers(1, 24), seconds, seconds)
def test_gpipe_and_1f1b_lose_p_minus_1_of_m_plus_p_minus_1(p: int, m: int, forward: int, backward: int) -> None:
    for order in (gpipe(p, m), one_f_one_b(p, m)):
        assert bubble(order, {"F": forward, "B": backward}) == Fraction(p - 1, m + p - 1)


@given(counts, st.integers(1, 9), seconds, seconds)
def test_naive_works_one_stage_at_a_time(p: int, m: int, forward: int, backward: int) -> None:
    assert bubble(naive(p, m), {"F": forward, "B": backward}) == 1 - Fraction(1, p)


@given(counts, st.integers(1, 4), st.integers(1, 5), seconds, seconds)
def test_virtual_stages_divide_the_bubble(p: int, v: int, rounds: int, forward: int, backward: int) -> None:
    m = rounds * p
    for order in (interleaved(p, m, v), looped_bfs(p, m, v)):
        assert bubble(order, {"F": forward, "B": backward}) == Fraction(p - 1, v * m + p - 1)


@given(counts, st.integers(0, 24))
def test_zero_bubble_h1_loses_a_third_of_what_1f1b_does(p: int, more: int) -> None:
    m = p + more
    assert bubble(zero_bubble_h1(p, m), EQUAL) == Fraction(p - 1, 3 * m + p - 1)
    assert own_idle(zero_bubble_h1(p, m), EQUAL) == [(p - 1 - s) for s in range(p)]
    assert own_idle(one_f_one_b(p, m), EQUAL) == [3 * (p - 1 - s) for s in range(p)]


@given(counts, st.integers(1, 4), st.integers(1, 3))
def test_virtual_stages_divide_the_bubble_of_zero_bubble_h1(p: int, rounds: int, v: int) -> None:
    m = rounds * p
    assert bubble(interleaved_zero_bubble(p, m, v), EQUAL) == Fraction(p - 1, 3 * v * m + p - 1)
    assert interleaved_zero_bubble(p, m, 1) == zero_bubble_h1(p, m)


@given(counts, st.integers(0, 24))
def test_zero_bubble_h2_and_v_lose_nothing(p: int, more: int) -> None:
    m = 2 * p - 1 + more
    assert own_idle(zero_bubble_h2(p, m), EQUAL) == [0] * p
    assert own_idle(zero_bubble_v(p, m), EQUAL) == [0] * p


@given(counts, st.integers(0, 24))
def test_dual_pipe_v_loses_p_minus_1_slots_at_most(p: int, more: int) -> None:
    assert own_idle(dual_pipe_v(p, 2 * p + more), EQUAL) == [p - 1 - r for r in range(p)]


@given(counts, st.integers(0, 24))
def test_micro_batches_in_flight(p: int, more: int) -> None:
    m = 2 * p - 1 + more
    held = {
        order: [in_flight(row) for row in order(p, m).rows]
        for order in (naive, gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_h2, zero_bubble_v)
    }
    assert held == {
        naive: [1] * p,
        gpipe: [m] * p,
        one_f_one_b: [p - s for s in range(p)],
        zero_bubble_h1: [p] * p,
        zero_bubble_h2: [2 * p - 1] * p,
        zero_bubble_v: [2 * p] * p,  # of half a rank's layers each
    }


@given(counts, st.integers(1, 4), st.integers(2, 5))
def test_virtual_stages_in_flight(p: int, v: int, rounds: int) -> None:
    # pv (1 + (p-1)/(pv)) on Megatron's first rank: Korthikanti et al., arXiv:2205.05198, section 4.2.3
    assert in_flight(interleaved(p, rounds * p, v).rows[0]) == p * v + p - 1
    assert [in_flight(row) for row in looped_bfs(p, rounds * p, v).rows] == [v * rounds * p] * p
    assert [in_flight(row) for row in interleaved_zero_bubble(p, rounds * p, v).rows] == [v * p] * p
    assert [in_flight(row) for row in dual_pipe_v(p, rounds * p).rows] == [2 * p + 1] * p


def steady_intervals(order: Order, updates: int) -> Iterator[set[float]]:
    """The times between one update and the next of each stage, the first and the last *updates* left out."""
    for row in slots(order, {"F": 2, "B": 3, "O": 0}):
        ends = [slot.end for slot in row if slot.action.phase == "O"][updates:-updates]
        yield {later - sooner for sooner, later in pairwise(ends)}


@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_asynchronous_orders_update_without_a_bubble(p: int) -> None:
    assert all(found == {2 + 3} for found in steady_intervals(pipedream.pipedream(p, 4 * p + 4), p))
    assert all(
        found == {(p + 1) * 5} for found in steady_intervals(pipedream_2bw.pipedream_2bw(p, p + 1, batches=6), 1)
    )


@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_a_stage_of_pipedream_stashes_a_version_for_each_micro_batch_in_flight(p: int) -> None:
    for stage, row in enumerate(pipedream.pipedream(p, 3 * p).rows):
        assert stashed(row, version=lambda _, newest: newest) == pipedream.weight_versions(stage, p) == p - stage


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(2, 4))
def test_replicas_have_pipedream_s_micro_batches_in_flight(replicas: list[int], rounds: int) -> None:
    stages, micro_batches = len(replicas), rounds * sum(replicas) * lcm(*replicas)
    rows = pipedream.pipedream(stages, micro_batches, replicas=replicas).rows
    for stage, (row, count) in enumerate(zip(rows, replicas, strict=True)):
        versions = pipedream.weight_versions(stage, stages, replicas=replicas)
        for replica in range(count):
            own = [a for a in row if a.micro_batch is not None and a.micro_batch % count == replica]
            # msr-fiddle/pipedream, runtime/runtime.py: (ranks from this stage on - 1) // replicas forwards, then 1F1B
            assert in_flight(own) == (sum(replicas[stage:]) - 1) // count + 1 == versions
    # section 3.3: NOAM = ceil(ranks / replicas of the input stage)
    assert pipedream.weight_versions(0, stages, replicas=replicas) == ceil(sum(replicas) / replicas[0])


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 4), (4, 6), (7, 9)])
def test_two_versions_are_enough_for_pipedream_2bw(p: int, m: int) -> None:
    for stage, row in enumerate(pipedream_2bw.pipedream_2bw(p, m, batches=5).rows):
        # every micro-batch of a batch runs with the version before that of its batch (section 3.1)
        versions = stashed(row, version=lambda i, _: max(0, i // m - 1))
        assert versions == pipedream_2bw.weight_versions(stage, p) == 2


def stashed(row: Sequence[Action], version: Callable[[int, int], int]) -> int:
    """The most versions held at once, where a micro-batch runs with *version* (its number, the newest there is)."""
    newest = most = 0
    used: Counter[int] = Counter()
    running: dict[int, int] = {}
    for phase, _, i in row:
        assert i is not None
        if phase == "F":
            running[i] = version(i, newest)
            assert running[i] <= newest, "the version is not there yet"
            used[running[i]] += 1
        elif phase == "B":
            used[running[i]] -= 1
        else:
            newest += 1
        most = max(most, len({newest} | {v for v, times in used.items() if times}))
    return most
