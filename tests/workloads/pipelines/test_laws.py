"""What holds for every pipeline order there is: complete, feasible, refused by name where it cannot be."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Order, slots

FOLDER = "clustersim.workloads.pipelines"
ORDERS = lookup.names(FOLDER)
LOOPED = ("interleaved", "looped_bfs", "interleaved_zero_bubble")
V_SHAPED = ("zero_bubble_v", "dual_pipe_v")


def test_all_orders_of_the_literature_are_there() -> None:
    assert set(ORDERS) >= {
        *LOOPED,
        *V_SHAPED,
        *(
            "dual_pipe",
            "naive",
            "gpipe",
            "one_f_one_b",
            "varuna",
            "pipedream",
            "pipedream_2bw",
            "zero_bubble_h1",
            "zero_bubble_h2",
        ),
    }


def built(name: str, stages: int, micro_batches: int, virtual_stages: int = 2) -> Order:
    """The order of these counts, or of the nearest ones that it takes."""
    build: Callable[..., Order] = lookup.function(FOLDER, name)
    if name in LOOPED:
        rounds = max(1, micro_batches // stages)
        return build(stages, micro_batches // rounds * rounds, virtual_stages)
    if name == "dual_pipe":
        stages += stages % 2
        micro_batches += micro_batches % 2
    if name in ("dual_pipe", "dual_pipe_v", "pipedream_2bw"):
        return build(stages, max(micro_batches, 2 * stages))
    return build(stages, micro_batches)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=40)
@given(stages=st.integers(1, 8), micro_batches=st.integers(1, 20), virtual_stages=st.integers(1, 4))
def test_every_stage_runs_every_micro_batch_once_forward_and_once_back_without_deadlock(
    name: str, stages: int, micro_batches: int, virtual_stages: int
) -> None:
    order = built(name, stages, micro_batches, virtual_stages)
    assert len(order.rows) == len(slots(order)) == stages + (name == "dual_pipe" and stages % 2)
    once = Counter((stage, i) for stage in range(order.stages) for i in range(order.micro_batches))
    actions = [action for row in order.rows for action in row]
    for phases in ("F", "BI", "BW"):
        assert Counter((stage, i) for phase, stage, i in actions if phase in phases) == once


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_is_read_as_it_was_written(name: str) -> None:
    order = built(name, 3, 6)
    assert Order.parse(order.csv()) == order


@pytest.mark.parametrize("name", ORDERS)
def test_stages_are_looped_or_in_a_v(name: str) -> None:
    if name == "dual_pipe":
        with pytest.raises(ScheduleError, match="1F4 is in row 2, but stage 1 is in row 1"):
            built(name, 4, 8).rank_of_stage()
        return
    homes = built(name, 4, 8).rank_of_stage()
    if name in V_SHAPED:
        assert list(homes.values()) == [0, 1, 2, 3, 3, 2, 1, 0]
    else:
        assert list(homes.values()) == [0, 1, 2, 3] * (2 if name in LOOPED else 1)


@pytest.mark.parametrize("name", ORDERS)
def test_only_pipedream_places_its_own_updates(name: str) -> None:
    assert built(name, 2, 4).asynchronous == name.startswith("pipedream")


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("counts", "fault"), [((0, 4), "stages = 0"), ((4, 0), "micro_batches = 0"), ((-1, 4), "-1")])
def test_counts_begin_at_one(name: str, counts: tuple[int, ...], fault: str) -> None:
    with pytest.raises(ScheduleError, match=f"{fault}: must be 1 or more"):
        lookup.function(FOLDER, name)(*counts)


@pytest.mark.parametrize(
    ("name", "counts", "fault"),
    [
        ("interleaved", (4, 8, 0), "virtual_stages = 0: must be 1 or more"),
        (
            "interleaved",
            (4, 11, 2),
            "micro_batches = 11: interleaved over 4 stages needs 2 equal rounds; try 10 or 12",
        ),
        (
            "interleaved_zero_bubble",
            (4, 13, 2),
            "micro_batches = 13: interleaved_zero_bubble over 4 stages needs 3 equal rounds; try 12 or 15",
        ),
        (
            "dual_pipe_v",
            (4, 7, 2),
            "micro_batches = 7: dual_pipe_v fills the V of 4 stages with 8 or more",
        ),
        ("dual_pipe_v", (4, 8, 3), "virtual_stages = 3: dual_pipe_v lays its stages in a V; it takes exactly 2"),
        ("zero_bubble_v", (4, 8, 1), "virtual_stages = 1: zero_bubble_v lays its stages in a V; it takes exactly 2"),
        (
            "pipedream_2bw",
            (4, 3),
            "micro_batches = 3: pipedream_2bw keeps two versions of the weights, which is enough only with as many "
            "micro-batches as stages; try 4",
        ),
    ],
)
def test_counts_that_an_order_cannot_take_are_refused_with_those_it_can(
    name: str, counts: tuple[int, ...], fault: str
) -> None:
    with pytest.raises(ScheduleError) as error:
        lookup.function(FOLDER, name)(*counts)
    assert str(error.value) == fault
