"""Varuna and GPipe as the lecture draws them: 4 stages, 5 micro-batches."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest

from clustersim.simulator.schedule.pipeline_order import Order, slots
from clustersim.workloads.pipelines.gpipe import gpipe
from clustersim.workloads.pipelines.varuna import varuna

FIGURE = Path(__file__).parents[3] / "../shared/data/varuna_schedule_seed.csv"
EARLY = "F1 F2 F3 F4 F5 R1 B1 R2 B2 R3 B3 R4 B4 R5 B5"
REVERSE = "F1 F2 F3 F4 F5 B5 R4 B4 R3 B3 R2 B2 R1 B1"


def drawn(order: Order) -> list[str]:
    """Each stage's boxes as a slide numbers them, from 1."""
    return [" ".join(f"{a.phase}{1 + (a.micro_batch or 0)}" for a in row) for row in order.rows]


def test_varuna_is_the_lectures_picture() -> None:
    assert drawn(varuna(4, 5)) == [
        EARLY,
        EARLY,
        "F1 F2 F3 R1 B1 R2 B2 R3 B3 F4 F5 R4 B4 R5 B5",
        "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]


def test_gpipe_with_recomputation_is_the_lectures_picture() -> None:
    assert drawn(gpipe(4, 5, recompute=True)) == [REVERSE] * 4


@pytest.mark.parametrize(("schedule", "order"), [("Varuna", varuna(4, 5)), ("Gpipe", gpipe(4, 5, recompute=True))])
def test_both_are_the_figure_cell_by_cell(schedule: str, order: Order) -> None:
    if not FIGURE.exists():
        pytest.skip(f"the figure's table {FIGURE.name} is not there")
    with FIGURE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["schedule"] == schedule]
    figure = {row["stage"]: " ".join(row[f"t{t}"] for t in range(1, 23) if row[f"t{t}"]) for row in rows}
    assert {f"S{stage + 1}": boxes for stage, boxes in enumerate(drawn(order))} == figure


def test_a_backward_follows_its_recomputation_and_the_last_stage_has_none() -> None:
    for stages in range(1, 7):
        for micro_batches in range(1, 9):
            *others, last = varuna(stages, micro_batches).rows
            assert [action.phase for action in last] == ["F", "B"] * micro_batches
            for row in others:
                before = [b for b, action in pairwise(row) if action.phase == "B"]
                assert before == [action._replace(phase="R") for action in row if action.phase == "B"]


def test_varuna_is_never_slower_than_gpipe() -> None:
    for stages in range(1, 7):
        for micro_batches in range(1, 9):
            ours, theirs = slots(varuna(stages, micro_batches)), slots(gpipe(stages, micro_batches, recompute=True))
            assert ours[0][-1].end <= theirs[0][-1].end
