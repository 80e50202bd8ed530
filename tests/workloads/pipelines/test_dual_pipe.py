"""DualPipe: the paper's bubble, parameters and activations; what runs beside what in a pair."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import Result
from clustersim.simulator.hardware.kernel import Kernel, measured
from clustersim.simulator.reading.errors import ScenarioError, ScheduleError
from clustersim.simulator.schedule.pipeline_order import Order, in_flight
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Exchange, Operator, Segment
from clustersim.workloads.parallelism.expert import in_pairs
from clustersim.workloads.pipelines.dual_pipe import dual_pipe

HALVES = st.integers(1, 4)


def run(pp: int, micro_batches: int, schedule: str = "dual_pipe", **changes: Any) -> Result:
    """A unit model with a layer in each stage on a network that takes no time."""
    model = {"kind": "unit", "forward": "1 s", "backward": "2 s", "parameters": 1000 * pp, "activations": "1 B"}
    cluster = {"preset": "uniform", "bandwidth": "1000 TB/s", "latency": "0 s", "gpus": changes.pop("gpus", pp)}
    result = Scenario.model_validate(
        {
            "version": 1,
            "cluster": cluster,
            "model": {**model, "num_layers": changes.pop("layers", pp)},
            "training": {"global_batch_size": micro_batches, "micro_batch_size": 1},
            "parallelism": {"pp": pp, "schedule": schedule, **changes},
            "network": {"transport": "ideal"},
        }
    ).run()
    assert isinstance(result, Result)
    return result


@given(half=HALVES, more=st.integers(0, 5))
def test_each_rank_computes_two_stages_and_each_end_takes_half_of_the_micro_batches(half: int, more: int) -> None:
    p, m = 2 * half, 4 * half + 2 * more
    order = dual_pipe(p, m)
    for rank, row in enumerate(order.rows):
        assert {action.stage for action in row} == {rank, p - 1 - rank}
        entered = {action.micro_batch for action in row if action.stage == rank}
        assert entered == set(range(m // 2))
        counts = Counter(action.phase for action in row)
        assert counts["F"] == counts["B"] + counts["I"] == m
        assert counts["I"] == counts["W"]
        assert in_flight(row) == p + 1
    every = [action for row in order.rows for action in row]
    assert len(set(every)) == len(every)
    assert Order.parse(order.csv()) == order


@settings(max_examples=12, deadline=None)
@given(half=HALVES, more=st.integers(0, 3))
def test_the_bubble_of_the_paper(half: int, more: int) -> None:
    """(PP/2 - 1)(F&B + B - 3W) by simulation; parameters twice, PP + 1 activations (arXiv:2412.19437, table 2)."""
    p, m = 2 * half, 4 * half + 2 * more
    summary = run(p, m).summary()
    forward, backward, weights = 1, 2, 1
    bubble = (half - 1) * (forward + backward + backward - 3 * weights)
    assert summary["step_time_s"] == pytest.approx(m * (forward + backward) + bubble, abs=1e-6)
    held = summary["memory"]["by_category_bytes"]
    assert (held["parameters"], held["activations"]) == (2 * 1000 * 4, p + 1)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 10)])
def test_half_of_the_ranks_in_a_v_have_the_same_bubble(p: int, m: int) -> None:
    """DualPipeV on p ranks is a half of DualPipe on 2 p (deepseek-ai/DualPipe, README.md)."""
    halves, whole = run(p, m, "dual_pipe_v", layers=2 * p), run(2 * p, 2 * m)
    assert halves.summary()["step_time_s"] == pytest.approx(whole.summary()["step_time_s"], abs=1e-6)


def test_mirror_images_sum_their_gradients() -> None:
    """Rank r and rank p - 1 - r have the same two stages, so dp joins them: four copies with two replicas."""
    result = run(4, 16, gpus=8, dp=2)
    assert result.scenario.schedule().mesh.axes["dp"].groups == ((0, 1, 6, 7), (2, 3, 4, 5))
    # a ring of four ranks sends 2 x 3 times what each holds: two stages of 1,000 parameters in fp32
    assert result.summary()["traffic_bytes"]["dp"] == pytest.approx(2 * 2 * 3 * 2000 * 4)
    sharded = run(4, 16, gpus=8, dp=2, data={"method": "zero", "stage": 1}).summary()
    whole = result.summary()["memory"]["by_category_bytes"]["optimizer"]
    assert sharded["memory"]["by_category_bytes"]["optimizer"] == whole / 4


def test_tied_embeddings_are_on_one_rank() -> None:
    """Both ends are on the first and on the last rank, whose gradients dp sums: no all-reduce of their own."""
    sizes = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 100}
    made = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 4, "bandwidth": "10 GB/s", "latency": "5 us"},
            "model": {**sizes, "tie_embeddings": True},
            "training": {"global_batch_size": 8, "micro_batch_size": 1},
            "parallelism": {"pp": 4, "schedule": "dual_pipe"},
        }
    )
    assert "embedding" not in made.schedule().mesh.axes
    assert made.model is not None
    ends = [made.model.layers[number].parameters for number in (0, 1, 4, 5)]
    held = made.schedule().programs[0].resident["parameters"]
    assert held == 4 * sum(ends)


@dataclass(frozen=True)
class Experts(Operator):
    """Attention, dispatch, experts, combine: a second each, and two seconds for the backward passes."""

    sent: float

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        return (measured(1.0), measured(1.0))

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        return (measured(2.0), measured(2.0))

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        exchange = (Exchange("all_to_all", self.sent, "ep"),)
        if phase == "W":
            return (Segment(()),)
        first, second = self.forward(samples) if phase == "F" else self.backward_input(samples)
        if phase == "F":
            return Segment((first,), after=exchange), Segment((second,), after=exchange)
        return Segment((first,), before=exchange), Segment((second,), before=exchange)


def alone(sent: float, layers: int, order: Order) -> Schedule:
    """Two ranks of one expert-parallel group, each with all stages of *order*."""
    made = [OperatorLayer(f"layer {n}", "transformer", (Experts(sent),), 0.0) for n in range(2 * layers)]
    model = Model("experts", made, 0.0, optimizer_seconds=0.0)
    schedule = compute(model, order, micro_batch_size=1, stages=[made[:layers], made[layers:]])
    return in_pairs(schedule.replicate("ep", 2), order)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_exchanges_of_a_pair_run_beside_the_computation_of_the_other(layers: int, seconds: float) -> None:
    """Figure 4 of the paper: with exchanges no longer than what is beside them, a pair takes its computation only."""
    text = "1F0,(0F1;1B0)OVERLAP_F_B"
    # each rank sends half of its bytes to the other
    sent = 2 * seconds * 1e9
    took = []
    for order in (Order.parse(text), Order.parse(text.replace("(", "").replace(";", ",").split(")")[0])):
        timeline = simulate(alone(sent, layers, order), uniform(2, bandwidth=1e9, latency=0.0))
        spans = [span for span in timeline.spans(0) if span.op.action and str(span.op.action) != "1F0"]
        took.append(max(span.end for span in spans) - min(span.begin for span in spans))
    computed, exchanged = layers * (2 * 1.0 + 2 * 2.0), 4 * layers * seconds
    assert took[1] == pytest.approx(computed + exchanged)
    if seconds <= 1:
        # each exchange of the backward is beside a second of the forward, those of the forward beside two seconds
        assert took[0] == pytest.approx(computed)
    assert computed <= took[0] < took[1]


@pytest.mark.parametrize("data", [{"method": "fsdp"}, {"method": "zero", "stage": 1}, {"method": "ddp"}])
def test_sharded_parameters(data: dict[str, Any]) -> None:
    """No pass loses an op of a pair: all methods compute as long."""
    summary = run(4, 16, gpus=8, dp=2, data=data).summary()
    assert summary["breakdown_s"]["compute"] == pytest.approx(8 * 3)


def test_what_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"3 pipeline ranks: dual_pipe pairs each rank .* try 2 or 4"):
        dual_pipe(3, 12)
    for micro_batches in (6, 9):
        with pytest.raises(ScheduleError, match=f"micro_batches = {micro_batches}: .* an even number of 8 or more"):
            dual_pipe(4, micro_batches)
    with pytest.raises(ScenarioError, match="dual_pipe has weights of two stages on a rank: give dp as one number"):
        run(2, 8, gpus=3, dp=[2, 1])
