"""ZB-H2 and ZB-V step without waiting for the norm of all gradients, and the report says what their gain needs."""

import pytest

from clustersim.scenarios import Scenario


def result(schedule, *, steps=1, engine="auto", **parallelism):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 4, "bandwidth": "1000 TB/s", "latency": "0 s"},
            "model": {"kind": "unit", "num_layers": 8, "forward": "1 s", "backward": "2 s"},
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "steps": steps},
            "parallelism": {"pp": 4, "schedule": schedule, **parallelism},
            "network": {"transport": "ideal"},
            "simulation": {"engine": engine},
        }
    ).run()


@pytest.mark.parametrize("schedule", ["zero_bubble_h2", "zero_bubble_v"])
@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_several_steps_have_no_bubble(schedule, steps, engine):
    if engine == "compiled":
        pytest.importorskip("numba")
    found = result(schedule, steps=steps, engine=engine)
    # Qi et al. 2024 (arXiv:2401.10241): with F = I = W every rank works from its first action to its last
    assert found.timeline.step_time == pytest.approx(8 * 2 * 3.0)
    assert found.breakdown["compute"] == pytest.approx(48.0)
    assert found.summary()["bubble_fraction"] == pytest.approx(0.0, abs=1e-9)
    assert "note:" not in found.report()


def test_with_a_global_check_h2_is_no_faster_than_h1_and_says_so():
    waiting, h1 = result("zero_bubble_h2", steps=3, optimizer_sync=True), result("zero_bubble_h1", steps=3)
    assert waiting.timeline.step_time == pytest.approx(h1.timeline.step_time)
    assert "shows its full gain only with parallelism.optimizer_sync: false" in waiting.report()
    assert "training.steps" not in waiting.report()
    assert "note:" not in h1.report()


def test_a_single_step_says_that_the_gain_needs_several():
    assert "note: zero_bubble_h2 shows its full gain only with training.steps: 3" in result("zero_bubble_h2").report()


def test_orders_that_flush_wait_by_default():
    for schedule, waits in [("1f1b", True), ("zero_bubble_h1", True), ("zero_bubble_h2", False)]:
        section = result(schedule).scenario.specification.parallelism
        assert section.synchronous_update is waits
