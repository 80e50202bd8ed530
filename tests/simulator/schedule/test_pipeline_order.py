"""Actions and orders print and parse back, in the form of torch.distributed.pipelining."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import PHASES, Action, Order

actions = st.builds(Action, st.sampled_from(sorted(PHASES)), st.integers(0, 99), st.none() | st.integers(0, 999))


@given(st.lists(st.lists(actions, min_size=1), min_size=1))
def test_an_order_is_read_as_it_was_written(rows: list[list[Action]]) -> None:
    order = Order(tuple(map(tuple, rows)))
    assert Order.parse(order.csv()) == order


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F0;", "-1F0"])
def test_what_is_no_action_is_refused_by_name(text: str) -> None:
    with pytest.raises(ScheduleError, match="is not an action"):
        Action.parse(text)


def test_empty_cells_are_idle_slots() -> None:
    assert Order.parse("0F0,,0B0\n") == Order(((Action("F", 0, 0), Action("B", 0, 0)),))


def test_a_pair_run_together_is_one_cell_and_two_actions() -> None:
    text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"
    order = Order.parse(text)
    assert [str(action) for action in order.rows[0]] == ["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"]
    assert order.overlapped == {Action("F", 0, 2)}
    assert order.csv() == text


@pytest.mark.parametrize("text", ["(0B0;0F1)OVERLAP_F_B", "(0F0;0F1)OVERLAP_F_B"])
def test_only_a_forward_runs_together_with_a_backward(text: str) -> None:
    with pytest.raises(ScheduleError, match="does not pair a forward with a backward"):
        Order.parse(text)


@pytest.mark.parametrize("text", ["", "\n", ",,\n"])
def test_an_empty_order_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="the order is empty"):
        Order.parse(text)


def test_an_order_counts_its_stages_and_micro_batches() -> None:
    order = Order.parse("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    assert (order.stages, order.micro_batches) == (4, 1)
    assert order.rank_of_stage() == {0: 0, 1: 1, 2: 1, 3: 0}
    assert not order.asynchronous
    assert Order.parse("0F0,0B0,0O0").asynchronous


def test_a_stage_lives_in_one_row() -> None:
    with pytest.raises(ScheduleError, match="1F1 is in row 1, but stage 1 is in row 0"):
        Order.parse("0F0,1F0\n1F1\n").rank_of_stage()


def test_notes_are_beside_the_order() -> None:
    rows = ((Action("F", 0, 0),),)
    assert Order(rows, notes=("made by hand",)) == Order(rows)
