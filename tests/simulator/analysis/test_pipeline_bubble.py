"""The causes of a bubble are those of the closed forms, on models in unit time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.analysis.metrics import Bubble, bubble_causes


def unit(stages: int, micro_batches: int, schedule: str, layers: list[int] | None = None, **network: Any) -> Scenario:
    fabric = {"bandwidth": "100 GB/s", "latency": "0 s", **network}
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": stages, "hosts": 1, "accelerator": "unit", **fabric},
            "model": {"kind": "unit", "num_layers": sum(layers or [stages]), "forward": "1 s", "backward": "2 s"},
            "training": {"global_batch_size": micro_batches, "micro_batch_size": 1},
            "parallelism": {"pp": stages, "schedule": schedule, **({"layout": layers} if layers else {})},
            "network": {"transport": "ideal"},
        }
    )


def found(scenario: Scenario) -> tuple[Bubble, StepNumbers]:
    result, form = scenario.run(), efficiency.bubble(scenario)
    assert form is not None
    assert isinstance(result, StepNumbers)
    one = bubble_causes(result.timeline, form.fraction)
    assert one is not None
    return one, result


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "naive"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 4), (4, 12)])
def test_equal_stages_only_fill_and_drain(schedule: str, stages: int, micro_batches: int) -> None:
    one, result = found(unit(stages, micro_batches, schedule))
    # (p - 1)/m of the work, 3 m s; with the naive order, in which one stage works at a time, p - 1 times the work
    n = 1 if schedule == "naive" else micro_batches
    assert one.fill_and_drain == pytest.approx((stages - 1) * 3 * micro_batches / n)
    assert one.fill_and_drain == pytest.approx(result.breakdown["bubble"])
    assert one[1:4] == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    assert one.excess == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("layers", [[1, 3, 1, 1], [2, 1, 1, 1], [1, 1, 1, 4]])
@pytest.mark.parametrize("micro_batches", [4, 9])
def test_gpipe_waits_for_its_slowest_stage_as_a_flow_shop(layers: list[int], micro_batches: int) -> None:
    one, result = found(unit(4, micro_batches, "gpipe", layers))
    mean, most = 3 * sum(layers) / 4, 3 * max(layers)
    assert one.fill_and_drain == pytest.approx(3 * mean)
    assert one.unequal_stages == pytest.approx((micro_batches - 1) * (most - mean))
    assert one.messages == pytest.approx(0.0, abs=1e-9)
    assert one.slowest == layers.index(max(layers))
    assert one.excess == pytest.approx(most / mean - 1)
    assert sum(one[:4]) == pytest.approx(result.breakdown["bubble"])


def test_messages_lengthen_fill_and_drain() -> None:
    # 10 GB over 100 GB/s are 0.1 s; the first micro-batch crosses three boundaries, and the last gradient too
    scenario = unit(4, 8, "gpipe").changed({"model.activations": "10 GB"}, "activations")
    one, result = found(scenario)
    assert one.fill_and_drain == pytest.approx(9.0)
    assert one.unequal_stages == pytest.approx(0.0, abs=1e-9)
    assert one.messages + result.breakdown["exposed_pp"] == pytest.approx(2 * 3 * 0.1)
    assert sum(one[:4]) == pytest.approx(result.breakdown["bubble"])


def test_ranks_wait_for_the_optimizer_of_the_stage_that_ends_last() -> None:
    # stage 1 reduces its gradients while stage 0 runs its last backward pass, and waits while stage 0 reduces its own
    changes = {"cluster.gpus": 4, "parallelism.dp": 2, "training.global_batch_size": 16, "model.parameters": 2 * 10**9}
    data = {"parallelism.data": {"method": "ddp", "overlap": False}}
    one, result = found(unit(2, 8, "gpipe").changed(changes | data, "dp"))
    assert result.breakdown["exposed_dp"] > 0.01
    assert one.optimizer == pytest.approx(result.breakdown["exposed_dp"] / 2)
    assert sum(one[:4]) == pytest.approx(result.breakdown["bubble"])


def test_an_asynchronous_order_waits_for_its_slowest_stage_only() -> None:
    one, result = found(unit(2, 4, "pipedream", [1, 2]))
    assert (one.fill_and_drain, one.optimizer) == (0.0, 0.0)
    assert sum(one[:4]) == pytest.approx(result.breakdown["bubble"])
    assert one.slowest == 1


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["gpipe", "1f1b", "naive", "zero_bubble_h1"]),
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.integers(4, 8),
)
def test_causes_are_never_negative_and_sum_to_the_bubble(schedule: str, layers: list[int], micro_batches: int) -> None:
    one, result = found(unit(len(layers), micro_batches, schedule, layers, latency="20 ms"))
    assert min(one[:4]) >= -1e-9
    assert sum(one[:4]) == pytest.approx(result.breakdown["bubble"], abs=1e-9)


def test_the_report_names_the_slowest_stage() -> None:
    told = unit(4, 4, "gpipe", [1, 3, 1, 1]).run().report()
    assert "unequal stages (stage 1 works 100.0% more than the mean) 3" in told
    assert "fill and drain 3" in told
