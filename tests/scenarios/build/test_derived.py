"""The clocks at which a step computes: those of the slowest of all GPUs, or of the stage with most to do."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.derived import at_clock_of_longest_stage, at_slowest_clock


def slowdown(vocabulary, **parallelism):
    """How much slower than the mean GPU those are that the step of a model with so many words waits for."""
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 8},
            "model": {"preset": "gpt2", "num_layers": 16, "vocab_size": vocabulary},
            "training": {"global_batch_size": 512, "micro_batch_size": 4, "precision": "bf16"},
            "parallelism": parallelism,
            "software": "megatron",
        }
    )
    cluster, devices, schedule = scenario.cluster(), scenario.derived.devices, scenario.schedule()
    mean = cluster.accelerator(devices[0])
    paced = at_clock_of_longest_stage(schedule, at_slowest_clock(cluster, devices), devices, scenario.software)
    found = mean.matmul_efficiency / paced.accelerator(devices[0]).matmul_efficiency
    return (found - 1) / mean.spread


def test_replicas_wait_for_the_slowest_of_all_gpus():
    assert slowdown(50_304, data={"method": "ddp"}) == pytest.approx(2.34, abs=0.01)


def test_a_pipeline_waits_for_the_slowest_of_the_stage_with_the_head():
    """A head as long as many layers: of 64 GPUs the 16 of the last of four stages count, or the 8 of eight."""
    assert slowdown(1_000_000, pp=4) == pytest.approx(1.77, abs=0.01)
    assert slowdown(1_000_000, pp=8) == pytest.approx(1.43, abs=0.01)


def test_a_small_head_leaves_the_others_in_reach():
    assert 1.77 < slowdown(2_000, pp=4) < 2.34
