from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from clustersim.simulator.analysis.timeline import Columns, Timeline
from clustersim.simulator.charts.palette import COPY, WAIT, axis_paint, in_order, paint_of
from clustersim.simulator.charts.pipeline import pipeline_ranks, pipeline_rows, stretches
from clustersim.simulator.charts.rows import MOST_ROWS, ChartRow, Shown, chosen, rows, shown, shown_window
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule


def seconds(row: ChartRow) -> dict[str, float]:
    return {boxes.paint.label: float((boxes.end - boxes.begin).sum()) for boxes in row.boxes}


def each(ranks: Iterable[int]) -> list[Shown]:
    return [Shown(rank, f"rank {rank}") for rank in ranks]


def folded(line: Timeline, representative: list[int]) -> Timeline:
    columns = {rank: line.columns[rank] for rank in set(representative)}
    return replace(line, columns=columns, representative=np.array(representative))


def test_a_row_for_each_class_of_equal_ranks(ddp: Callable[[int], Timeline]) -> None:
    line = folded(ddp(5), [0, 1, 0, 0, 1])
    assert shown(line, None) == ([(0, "ranks 0, 2, ... (3)"), (1, "ranks 1, 4")], "5 ranks: 2 classes of equal ranks")
    assert shown(line, [4, 2]) == ([(4, "rank 4"), (2, "rank 2")], "2 of 5 ranks")
    assert shown(line, range(5))[1] == ""
    alike = folded(ddp(5), [0] * 5)
    assert shown(alike, None) == ([(0, "ranks 0-4 (5)")], "5 ranks: one row for all ranks, which are equal")


def test_of_many_classes_some_are_shown_and_the_rest_is_told(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(9)
    assert shown(line, None) == (each(range(9)), "")
    some, told = shown(line, None, most=5)
    assert some == each([0, 2, 4, 6, 8])
    assert told == "5 of 9 ranks, evenly spread; --ranks shows others"
    some, told = shown(folded(line, [0, 0, 2, 3, 4, 5, 6, 7, 8]), None, most=3)
    assert [rank for rank, _ in some] == [0, 5, 8]
    assert told == "3 of 8 classes of equal ranks (9 ranks), evenly spread; --ranks shows others"


def test_ranks_whose_spans_were_not_kept_are_not_shown_but_told(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(6)
    some = replace(line, columns={rank: line.columns[rank] for rank in (1, 4)})
    assert shown(some, None) == (each([1, 4]), "2 of 6 ranks, those whose spans were kept; --ranks keeps others")
    assert pipeline_ranks(some) == [1]


def test_a_row_for_each_rank_and_stream_computing_first(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(4)
    drawn = rows(line, each(range(4)), (0.0, line.makespan))
    assert [(row.rank, row.stream) for row in drawn] == [(r, s) for r in range(4) for s in ("compute", "copy", "dp")]


def test_boxes_are_as_long_as_the_spans_and_waits_stand_before_them(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(4)
    drawn = {row.stream: row for row in rows(line, each([0]), (0.0, line.makespan))}
    assert seconds(drawn["compute"]) == pytest.approx(
        {"F forward": 12 * 0.003, "B backward": 12 * 0.006, "O optimizer": 0.004}
    )
    # rank 3 is slow: rank 0 comes to each all-reduce early
    waited = sum(span.begin - span.ready for span in line.spans(0))
    assert seconds(drawn["dp"]) == pytest.approx({WAIT.label: waited, "dp communication": 4 * 0.022})
    assert waited > 0.01


def test_layers_of_one_action_share_a_label(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(2)
    labels = rows(line, each([0]), (0.0, line.makespan))[0].labels
    assert [label.text for label in labels] == ["F0", "B0", "O"]
    assert labels[0].end - labels[0].begin == pytest.approx(12 * 0.003)


def test_a_window_cuts_boxes_at_its_edges(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(2)
    assert seconds(rows(line, each([0]), (0.0225, 0.0305))[0]) == pytest.approx({"F forward": 0.008})


def test_many_ranks_fold_their_transfers_into_one_row(gpipe: Callable[[int, int], Timeline]) -> None:
    line = gpipe(30, 2)
    drawn = rows(line, each(range(30)), (0.0, line.makespan))
    assert len(drawn) == 60 <= MOST_ROWS
    assert {row.stream for row in drawn} == {"compute", "transfers"}


def test_ranks_are_chosen_evenly_with_both_ends(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(9)
    assert chosen(line, None, most=5) == [0, 2, 4, 6, 8]
    assert chosen(line, None, most=9) == list(range(9))
    assert chosen(line, [3, 1, 3], most=1) == [3, 1]
    with pytest.raises(SimulatorError, match="there is no rank 9; ranks are 0 to 8"):
        chosen(line, [9], most=9)


@pytest.mark.parametrize("window", [(2.0, 1.0), (-2.0, -1.0), (50.0, 60.0)])
def test_a_window_with_nothing_in_it_is_refused(ddp: Callable[[int], Timeline], window: tuple[float, float]) -> None:
    with pytest.raises(SimulatorError, match="window"):
        shown_window(ddp(2), window)


def test_legends_stand_in_one_order(ddp: Callable[[int], Timeline]) -> None:
    paints = [WAIT, COPY, *(paint_of(span.op) for span in ddp(2).spans(0))]
    labels = [paint.label for paint in in_order(paints)]
    assert labels == ["F forward", "B backward", "O optimizer", "dp communication", COPY.label, WAIT.label]


def test_axes_of_the_plan_have_colours_of_their_own() -> None:
    assert len({axis_paint(name).fill for name in ("tp", "dp", "pp", "ps", "ep", "cp")}) == 6
    assert axis_paint("mine") == axis_paint("mine")


def test_pipeline_boxes_are_numbered_by_micro_batch(gpipe: Callable[[int, int], Timeline]) -> None:
    line = gpipe(3, 4)
    drawn, told = pipeline_rows(line, None, (0.0, line.makespan))
    assert told == "boxes: F 100 ms, B 200 ms"
    assert [row.stream for row in drawn] == ["stage 0", "stage 1", "stage 2"]
    assert [[label.text for label in row.labels] for row in drawn] == [list("01233210")] * 3


def test_layers_of_one_action_are_one_stretch(ddp: Callable[[int], Timeline]) -> None:
    done = stretches(ddp(2), 0)
    assert [stretch.action for stretch in done] == [Action("F", 0, 0), Action("B", 0, 0), Action("O", 0)]
    assert done[0].end == pytest.approx(0.002 + 12 * 0.003)


def test_ranks_that_do_nothing_are_told() -> None:
    schedule = Schedule(Mesh(2, {}), (Program("idle", (), on="host"),), (0, 0))
    idle = Timeline.unfolded(schedule, [Columns.of([])] * 2)
    with pytest.raises(SimulatorError, match="ranks chosen have nothing to do"):
        rows(idle, each([0, 1]), (0.0, 1.0))
    with pytest.raises(SimulatorError, match="no rank lives on a GPU"):
        pipeline_rows(idle, None, (0.0, 1.0))
