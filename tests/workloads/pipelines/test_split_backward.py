"""The backward in two: what is put off, and what stays as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Order, slots
from clustersim.workloads.pipelines._row_patterns import split_backward
from clustersim.workloads.pipelines.dual_pipe_v import dual_pipe_v
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b


def test_without_delay_the_halves_stand_side_by_side() -> None:
    assert split_backward(Order.parse("0F0,0B0,0F1,0B1")).csv() == "0F0,0I0,0W0,0F1,0I1,0W1\n"


def test_an_update_waits_for_the_weights() -> None:
    assert split_backward(Order.parse("0F0,0B0,0O0,0F1,0B1,0O1"), [3]).csv() == "0F0,0I0,0W0,0O0,0F1,0I1,0W1,0O1\n"


def test_recomputation_stays_where_it_is() -> None:
    assert split_backward(Order.parse("0F0,0R0,0B0")).csv() == "0F0,0R0,0I0,0W0\n"


def test_a_pair_run_together_stays_whole() -> None:
    order = dual_pipe_v(2, 5)
    halves = split_backward(order)
    assert halves.overlapped == order.overlapped
    assert halves.csv().count("OVERLAP_F_B") == order.csv().count("OVERLAP_F_B") > 0
    assert ",1B" not in halves.csv().replace(";1B", "")


def test_a_delay_is_given_for_every_row() -> None:
    with pytest.raises(ScheduleError, match="2 delays are given for an order of 3 rows; give one for each"):
        split_backward(one_f_one_b(3, 4), [0, 1])


@given(st.integers(1, 6), st.integers(1, 12), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_any_delay_gives_each_backward_its_halves_in_order(stages: int, micro_batches: int, delays: list[int]) -> None:
    halves = split_backward(one_f_one_b(stages, micro_batches), delays[:stages])
    for row, delay in zip(halves.rows, delays, strict=False):
        for phase in "FIW":
            assert [a.micro_batch for a in row if a.phase == phase] == list(range(micro_batches))
        kept = [sum({"I": 1, "W": -1}.get(a.phase, 0) for a in row[: end + 1]) for end in range(len(row))]
        assert max(kept) == min(delay + 1, micro_batches)


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_sending_the_gradient_of_the_input_ahead_never_costs_time(
    stages: int, micro_batches: int, forward: int, inputs: int, weights: int
) -> None:
    whole = one_f_one_b(stages, micro_batches)
    durations: dict[str, float] = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
    assert makespan(split_backward(whole), durations) <= makespan(whole, durations)


def makespan(order: Order, durations: dict[str, float]) -> float:
    return max(row[-1].end for row in slots(order, durations))
