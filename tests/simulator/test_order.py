"""Actions and orders print and parse back, in the form of torch.distributed.pipelining."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ScheduleError
from simulator.order import PHASES, Action, Order
from workloads.pipelines.one_f_one_b import one_f_one_b

actions = st.builds(Action, st.sampled_from(sorted(PHASES)), st.integers(0, 99), st.none() | st.integers(0, 999))


@given(st.lists(st.lists(actions, min_size=1), min_size=1))
def test_an_order_is_read_as_it_was_written(rows):
    order = Order(tuple(map(tuple, rows)))
    assert Order.parse(order.csv()) == order


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F0;", "-1F0"])
def test_what_is_no_action_is_refused_by_name(text):
    with pytest.raises(ScheduleError, match="is not an action"):
        Action.parse(text)


def test_empty_cells_are_idle_slots():
    assert Order.parse("0F0,,0B0\n") == Order(((Action("F", 0, 0), Action("B", 0, 0)),))


@given(st.integers(1, 12), st.integers(1, 24))
def test_one_f_one_b_keeps_at_most_p_minus_s_micro_batches_alive(stages, micro_batches):
    for stage, row in enumerate(one_f_one_b(stages, micro_batches).rows):
        alive = peak = 0
        for action in row:
            alive += 1 if action.phase == "F" else -1
            peak = max(peak, alive)
        assert alive == 0
        assert peak == min(stages - stage, micro_batches)
        assert [a.micro_batch for a in row if a.phase == "B"] == list(range(micro_batches))
