"""Rules of the frameworks, and the two rules of a parallel plan, as `check` and `show derived` tell them."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.explanation import derived
from clustersim.simulator.reading.errors import ScenarioError

GPT = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 64, "vocab_size": 1000}


def scenario(software="megatron_deepspeed", batch=16, **parallelism):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
            "model": GPT,
            "training": {"global_batch_size": batch, "micro_batch_size": 2, "precision": "bf16"},
            "parallelism": parallelism,
            "software": software,
        }
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_2_and_3_with_a_pipeline_run_only_if_allowed(stage):
    data = {"method": "zero", "stage": stage}
    with pytest.raises(ScenarioError, match=f"DeepSpeed refuses ZeRO-{stage} with a pipeline \\(pp is 2\\)"):
        scenario(pp=2, data=data)
    assert scenario(pp=2, data={**data, "allow": ["zero_with_pipeline"]}).run().timeline.step_time > 0
    assert scenario(tp=2, data=data).derived.replicas == 4


@pytest.mark.parametrize("stage", [0, 1])
def test_lower_stages_go_with_a_pipeline(stage):
    assert scenario(pp=2, data={"method": "zero", "stage": stage}).derived.degree("pp") == 2


@pytest.mark.parametrize(("stage", "overlaps"), [(0, False), (1, False), (2, False), (3, True)])
def test_zero_overlaps_by_default_as_deepspeed_does(stage, overlaps):
    def step_time(**keys):
        return scenario(data={"method": "zero", "stage": stage, "bucket": "100 kB", **keys}).run().timeline.step_time

    # deepspeed, runtime/zero/config.py: overlap_comm is None, and becomes true in stage 3 only
    assert step_time() == step_time(overlap=overlaps) != step_time(overlap=not overlaps)
    assert f"# overlap: {str(overlaps).lower()}" in derived(scenario(data={"method": "zero", "stage": stage}))


def test_derived_shows_the_two_rules():
    shown = derived(scenario(tp=2, pp=2))
    assert "# world_size: tp 2 x pp 2 x dp 2 = 8\n" in shown
    assert "# global_batch: 16 = dp 2 x micro_batch_size 2 x 4 micro-batches\n" in shown


def test_derived_shows_the_rules_of_unequal_replicas():
    shown = derived(scenario(pp=2, dp=[4, 2], data={"method": "ddp"}))
    assert "# world_size: tp 1 x pp 2 x dp 4-2 = 6\n" in shown
    assert "# global_batch: 16 = micro_batch_size 2 x 8 micro-batches\n" in shown


def test_mfu_by_6nd_is_its_formula():
    result = scenario(tp=2).run()
    summary, model = result.summary(), result.scenario.model
    tokens = 16 * 64
    # 6 N D / (GPUs x peak x step time) on 8 A100 of 312 TFLOP/s
    expected = 6 * model.parameters * tokens / (8 * 312e12 * summary["step_time_s"])
    assert summary["mfu_6nd"] == pytest.approx(expected)
    assert f"D = {tokens:,} tokens a step" in result.report()


def test_a_model_without_tokens_has_no_6nd():
    unit = {"kind": "unit", "num_layers": 2, "forward": "1 ms", "backward": "2 ms"}
    data = {"version": 1, "cluster": {"preset": "dgx1"}, "model": unit, "training": {"global_batch_size": 8}}
    result = Scenario.model_validate(data).run()
    assert result.summary()["mfu_6nd"] is None
    assert "6ND" not in result.report()
