"""What pictures show of large runs, and that their numbers are those of the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from clustersim.scenarios import Scenario
from clustersim.scenarios.campaign.campaign import run as campaign_run
from clustersim.scenarios.campaign.report import draw, report
from clustersim.simulator.charts import campaign as charts
from clustersim.simulator.charts.collective_steps import messages, rounds_of
from clustersim.simulator.charts.network import IDLE, edge_colour
from clustersim.simulator.charts.pipeline import box_lengths
from clustersim.simulator.charts.rows import MOST_GIVEN, shown
from clustersim.simulator.charts.sweep import SweepPoint, SweepSeries, sweep_chart
from clustersim.simulator.charts.topology_layout import Edge
from clustersim.simulator.network.collectives import ring, tree
from clustersim.simulator.network.step import Group
from clustersim.simulator.reading.errors import ScenarioError


def unit(micro_batches: int, **training: Any) -> Scenario:
    """A pipeline of two stages with so many micro-batches."""
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 2, "bandwidth": "1 GB/s", "latency": "0 s", "accelerator": "unit"},
            "model": {
                "kind": "unit",
                "num_layers": 6,
                "forward": "1 s",
                "backward": "2 s",
                "parameters": 0,
                "activations": "0 B",
            },
            "training": {"global_batch_size": micro_batches, "micro_batch_size": 1, **training},
            "parallelism": {"pp": 2},
            "network": {"transport": "ideal"},
        }
    )


def titles(figure: Figure) -> list[str]:
    return [axes.get_title("left") for axes in figure.axes]


def test_a_long_step_shows_one_period_of_its_steady_state() -> None:
    result = unit(300).run()
    whole, period = titles(result.plot("timeline"))
    assert whole == "the whole step; marked: one period of its steady state, a micro-batch"
    assert period.startswith("a micro-batch: ")
    left, right = result.plot("timeline").axes[1].get_xlim()
    assert right - left == pytest.approx(9.0, abs=0.1)  # a forward pass of 3 layers and a backward pass
    assert result.timeline.makespan > 300 * 9
    # what can be seen needs no second panel, and a chosen window is what is drawn
    assert len(unit(8).run().plot("timeline").axes) == 1
    assert len(result.plot("timeline", window=(0.0, 1000.0)).axes) == 1


def test_many_given_ranks_are_bands_of_equal_ones() -> None:
    result = Scenario.load("zhores_resnet50_ddp", {"simulation.stragglers": [{"rank": 17, "slowdown": 1.3}]}).run()
    few, _ = shown(result.timeline, range(8))
    assert [one.name for one in few] == [f"rank {rank}" for rank in range(8)]
    bands, note = shown(result.timeline, range(100))
    assert len(bands) <= MOST_GIVEN and any(one.name == "rank 17" for one in bands)
    assert note.startswith("100 ranks in ") and "bands of ranks that look equal" in note


def test_the_boxes_of_a_phase_are_told_in_one_unit() -> None:
    plain, again = (unit(4, recompute=how).run().timeline for how in ("none", "full"))
    assert box_lengths(plain) == "boxes: F 3 s, B 6 s"
    # a layer is computed again before its backward pass: three boxes, not a backward pass of a third of the length
    assert box_lengths(again) == "boxes: F 3 s, B 6 s in 3 boxes, R 3 s in 3 boxes"


def test_the_scale_of_the_topology_is_absolute() -> None:
    def colour(use: float) -> str:
        return edge_colour(Edge(0, 1, "port", 1e9, 1, use))

    red, green, blue = (int(colour(0.07)[place : place + 2], 16) for place in (1, 3, 5))
    assert min(red, green) > 200 > blue  # pale yellow, whatever is busiest
    assert colour(1.0) == colour(1.2) != colour(0.9)
    assert colour(0.0) == IDLE


def test_categories_are_bars_and_numbers_a_line() -> None:
    points = [SweepPoint(float(place), {"step_time_s": 1.0 + place}) for place in range(3)]
    bars = sweep_chart(SweepSeries("algorithm", "", {"": points}, ("ring", "tree", "direct")), "").axes[0]
    assert [bar.get_height() for bar in bars.patches if isinstance(bar, Rectangle)] == [
        1.0,
        2.0,
        3.0,
    ] and not bars.lines
    assert bars.get_ylim()[0] == 0
    line = sweep_chart(SweepSeries("tp", "", {"": points}), "").axes[0]
    assert not line.patches and len(line.lines) == 1


def test_percentiles_of_a_campaign_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(charts, "draw_campaign", lambda course, path, title: drawn.append(course))
    failures = {"mtbf_per_gpu": "2 h", "restart": "2 min"}
    days = {"training.samples": 1e6, "campaign": {"failures": failures, "repeats": 12}}
    campaign = campaign_run(Scenario.load("hello", days))
    draw(campaign, tmp_path / "c.png")
    (course,) = drawn
    text = report(campaign)
    for name, seconds in course.percentiles.items():
        assert f"{name} {seconds / 86_400:.4g}" in text
    assert list(course.percentiles) == ["p5", "p50", "p95"]


@pytest.mark.parametrize(("size", "rounds"), [(4, 6), (8, 14)])
def test_the_messages_of_a_ring_are_those_of_the_lecture(size: int, rounds: int) -> None:
    steps = ring.all_reduce(Group(size), 1.0)
    sent = list(messages(steps))
    assert rounds_of(steps) == rounds == 2 * (size - 1)
    for place in range(rounds):
        now = [one for one in sent if one.round == place]
        assert sorted(one.sender for one in now) == list(range(size))
        assert all(one.receiver == (one.sender + 1) % size for one in now)
        assert all(one.adds == (place < size - 1) for one in now)
        assert sorted(one.chunk for one in now) == list(range(size))  # each link carries another chunk


def test_a_rank_of_a_tree_sends_a_chunk_after_it_has_come() -> None:
    steps = tree.all_reduce(Group(8), 1.0)
    sent = list(messages(steps))
    assert rounds_of(steps) == 1 + max(one.round for one in sent)
    for one in sent:
        came = [m.round for m in sent if m.receiver == one.sender and m.chunk == one.chunk and m.adds == one.adds]
        assert all(place < one.round for place in came)
    # of 1,024 ranks a sample of the rounds suffices
    assert {one.round for one in messages(steps, 3)} == set(range(0, rounds_of(steps), 3))


def test_steps_are_drawn_of_collectives_only(tmp_path: Path) -> None:
    result = Scenario.load("allreduce_dgx_a100").run()
    figure = result.plot("steps", tmp_path / "steps.png")
    assert [title.partition(":")[0] for title in titles(figure)] == ["ring", "tree"]
    assert "14 rounds, messages of 1/8 of the vector; the busiest rank sends 1.75 vectors" in titles(figure)[0]
    many = Scenario.load("allreduce_dgx_a100", {"cluster.nodes": 4, "collective.size": "1 MB"}).run().plot("steps")
    assert all(len(axes.images) == 1 for axes in many.axes)
    with pytest.raises(ScenarioError, match="hello trains a model; steps are those of one collective"):
        Scenario.load("hello").run().plot("steps")
