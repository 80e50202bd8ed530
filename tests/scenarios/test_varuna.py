"""Varuna recomputes as late as it can: where durations are given, the recomputation ends when the gradient comes."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.charts.pipeline import stretches

FIGURE = Path(__file__).parents[2] / "../shared/data/varuna_schedule_seed.csv"


def varuna(stages=4, micro_batches=5, forward="1 s", backward="2 s", layers=1, **changes):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": stages, "bandwidth": "1000 TB/s", "latency": "0 s"},
            "model": {"kind": "unit", "num_layers": stages * layers, "forward": forward, "backward": backward},
            "training": {"global_batch_size": micro_batches, "micro_batch_size": 1},
            "parallelism": {"pp": stages, "schedule": "varuna"},
            "network": {"transport": "ideal"},
            **changes,
        }
    )


def boxes(timeline, stage):
    return [one for one in stretches(timeline, stage) if one.end > one.begin]


@settings(max_examples=30, deadline=None)
@given(
    stages=st.integers(2, 5),
    micro_batches=st.integers(1, 7),
    backward=st.sampled_from([1, 2, 3]),
    layers=st.integers(1, 3),
)
def test_no_time_passes_between_recomputation_and_backward(stages, micro_batches, backward, layers):
    timeline = varuna(stages, micro_batches, "1 s", f"{backward} s", layers).run().timeline
    for stage in range(stages - 1):
        following = {one.action.micro_batch: one.end for one in boxes(timeline, stage + 1) if one.action.phase == "B"}
        for before, after in pairwise(boxes(timeline, stage)):
            if before.action.phase == "R":
                assert after.action == before.action._replace(phase="B")
                assert after.begin == pytest.approx(before.end)
                # as late as it can, unless the rank had other work then
                assert before.end >= following[before.action.micro_batch] - 1e-9


def test_lateness_costs_no_time():
    # as the order laid out in time with free messages, F = R = 1 and B = 2: 27 slots
    assert varuna().run().timeline.step_time == pytest.approx(27.0)
    assert varuna(backward="1 s").run().timeline.step_time == pytest.approx(19.0)


def test_stages_wait_before_they_recompute_as_on_the_slide():
    if not FIGURE.exists():
        pytest.skip(f"the figure's table {FIGURE.name} is not there")
    with FIGURE.open(newline="") as file:
        rows = {row["stage"]: row for row in csv.DictReader(file) if row["schedule"] == "Varuna"}
    timeline = varuna().run().timeline
    for stage in range(3):
        cells = [rows[f"S{stage + 1}"][f"t{t}"] for t in range(1, 23)]
        drawn = [f"{one.action.phase}{one.action.micro_batch + 1}" for one in boxes(timeline, stage)]
        assert drawn == [cell for cell in cells if cell]
        # the slide has blanks before recomputations only, never between one and its backward pass
        waited = {
            after.action.phase for before, after in pairwise(boxes(timeline, stage)) if after.begin > before.end + 1e-9
        }
        blank = {after[0] for before, after in pairwise(cells) if not before and after and after != "F1"}
        assert blank <= waited == {"R"}


def test_the_last_two_stages_are_the_slide_in_equal_boxes():
    if not FIGURE.exists():
        pytest.skip(f"the figure's table {FIGURE.name} is not there")
    with FIGURE.open(newline="") as file:
        rows = {row["stage"]: row for row in csv.DictReader(file) if row["schedule"] == "Varuna"}
    timeline = varuna(backward="1 s").run().timeline
    for stage in (2, 3):
        found = {
            f"t{one.begin + 1:.0f}": f"{one.action.phase}{one.action.micro_batch + 1}" for one in boxes(timeline, stage)
        }
        assert {t: found.get(t, "") for t in (f"t{n}" for n in range(1, 23))} == {
            t: rows[f"S{stage + 1}"][t] for t in (f"t{n}" for n in range(1, 23))
        }


def test_the_picture_says_its_unit():
    assert "boxes: F 1 s, B 2 s, R 1 s" in varuna().run().report()


def test_recomputation_longer_than_the_next_backward_pass_starts_at_once():
    timeline = varuna(stages=2, micro_batches=2, forward="3 s", backward="1 s").run().timeline
    first = [(str(one.action), one.begin, one.end) for one in boxes(timeline, 0)]
    assert first == [("0F0", 0, 3), ("0F1", 3, 6), ("0R0", 6, 9), ("0B0", 9, 10), ("0R1", 10, 13), ("0B1", 13, 14)]


def test_priced_layers_recompute_as_soon_as_they_can():
    gpt = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 64, "vocab_size": 1000}
    changed = {"model": gpt, "cluster": {"preset": "dgx1"}, "network": {"transport": "nccl"}}
    names = {op.name for _, op in varuna(micro_batches=4, **changed).schedule().ops()}
    assert not [name for name in names if ".due" in name]
