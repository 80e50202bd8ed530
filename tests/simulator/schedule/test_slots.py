"""Time slots of an order: begins and ends, bubbles, micro-batches in flight, and orders that cannot run."""

import pytest

from clustersim.simulator.reading.errors import DeadlockError, ScheduleError
from clustersim.simulator.schedule.pipeline_order import Action, Order, bubble_fraction, in_flight, slots

PIPELINE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_each_action_begins_when_its_row_is_free_and_what_it_needs_has_ended() -> None:
    first, second = slots(Order.parse(PIPELINE), {"F": 1, "B": 2})
    assert [(slot.begin, slot.end) for slot in first] == [(0, 1), (1, 2), (4, 6), (7, 9)]
    assert [(slot.begin, slot.end) for slot in second] == [(1, 2), (2, 4), (4, 5), (5, 7)]
    assert bubble_fraction((first, second)) == pytest.approx(1 / 3)


def test_a_gradient_comes_with_the_input_half_alone() -> None:
    first, second = slots(Order.parse("0F0,0I0,0W0\n1F0,1I0,1W0\n"), {"F": 1, "I": 1, "W": 5})
    assert [slot.begin for slot in first] == [0, 3, 4]
    assert [slot.begin for slot in second] == [1, 2, 3]


def test_a_backward_waits_for_its_recomputation_in_another_row_or_its_own() -> None:
    (row,) = slots(Order.parse("0F0,0R0,0B0"))
    assert [slot.begin for slot in row] == [0, 1, 2]


def test_what_is_in_flight_ends_with_the_weights_half() -> None:
    assert in_flight(Order.parse("0F0,0F1,0B0,0F2,0B1,0B2").rows[0]) == 2
    assert in_flight(Order.parse("0F0,0F1,0I0,0F2,0W0,0I1,0W1,0I2,0W2").rows[0]) == 3


def test_rows_that_wait_for_one_another_are_shown_with_their_next_action_marked() -> None:
    broken = Order.parse("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    with pytest.raises(DeadlockError) as error:
        slots(broken)
    assert str(error.value).splitlines() == [
        "the order cannot run: in a circle",
        "  row 0: 0F0 >>0B0<< 0F1 0B1  waits for 1B0, which is in row 1",
        "  row 1: 1F0 >>1F1<< 1B0 1B1  waits for 0F1, which is in row 0",
    ]


def test_a_circle_may_be_one_row() -> None:
    with pytest.raises(DeadlockError, match=r"row 0: >>0B0<< 0F0  waits for 0F0, which is in row 0"):
        slots(Order.parse("0B0,0F0"))


def test_a_forward_that_nobody_runs_is_named() -> None:
    with pytest.raises(DeadlockError, match=r"(?s)an action is missing.*waits for 0F1, which is in no row"):
        slots(Order.parse("0F0,0B0\n1F0,1B0,1F1,1B1\n"))


def test_an_action_runs_once() -> None:
    with pytest.raises(ScheduleError, match="0F0 occurs twice in the order; each action runs once"):
        slots(Order(((Action("F", 0, 0), Action("F", 0, 0)),)))
