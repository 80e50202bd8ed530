"""The planner searches optimal recomputation: estimates against simulations, and what it rejects."""

import pytest

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.least_memory import least_bytes
from clustersim.scenarios.search.lower_bounds import least_seconds
from clustersim.scenarios.search.planner import Planner


def job(**search: object) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb"},
            "model": {"preset": "gpt3_175b", "num_layers": 24, "hidden_size": 4096, "num_attention_heads": 32},
            "training": {"global_batch_size": 64, "micro_batch_size": 8, "precision": "bf16"},
            "parallelism": {"tp": 2, "pp": 4, "sequence_parallel": True, "data": {"method": "zero", "stage": 1}},
            "software": "megatron",
            "plan": {"search": search, "simulate": "all"},
        }
    )


def with_recompute(how: object) -> Scenario:
    return job().changed({"training.recompute": how}, "test")


@pytest.mark.parametrize(
    "how", [pytest.param("optimal", marks=pytest.mark.exhaustive), {"method": "optimal", "budget": "8 GB"}]
)
def test_the_estimate_is_near_the_simulation_and_above_the_bounds(how: object) -> None:
    scenario: BuiltScenario = with_recompute(how)
    estimator, variant = Estimator(scenario), scenario
    estimate, result = estimator.estimate(variant), with_recompute(how).run()
    assert estimate.seconds == pytest.approx(result.timeline.step_time, rel=0.03)
    assert estimate.need.tensors == pytest.approx(result.memory.peak.nbytes, rel=0.03)  # type: ignore[attr-defined]
    assert estimate.seconds is not None
    assert 0 < least_seconds(estimator, variant) <= estimate.seconds
    assert least_bytes(estimator, variant) <= estimate.need.nbytes


def test_what_optimal_cannot_do_is_rejected_and_the_rest_is_ordered() -> None:
    planner = Planner(job(recompute=["none", "full", "optimal"], schedule=["1f1b", "zero_bubble_h1"]))
    planner.bound(planner.candidates)
    planner.estimate(planner.candidates)
    seconds = {}
    for one in planner.candidates:
        words = one.values["schedule"], one.values["recompute"]
        seconds[words] = planner.journal.estimated[one.key].seconds
        if words == ("zero_bubble_h1", "optimal"):
            assert "divides them into I and W" in planner.journal.estimated[one.key].why
    assert seconds["zero_bubble_h1", "optimal"] is None
    optimal, full = (seconds["1f1b", how] for how in ("optimal", "full"))
    assert optimal is not None
    assert full is not None
    assert optimal < full


def test_none_is_as_fast_as_optimal_where_it_fits() -> None:
    small = {"training.micro_batch_size": 1}
    none, optimal = (job().changed({**small, "training.recompute": how}, "test").run() for how in ("none", "optimal"))
    assert none.timeline.step_time == optimal.timeline.step_time
