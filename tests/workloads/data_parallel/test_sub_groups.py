"""ZeRO-3's optimizer step in sub-groups: closed forms of what it holds."""

import pytest

from clustersim.scenarios import Scenario

BILLION = 1e9


def step(gpus, stage=3, num_layers=32):
    """The memory of a step of a model of which an optimizer step is the peak, and its parameters."""
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 1, "node": {"accelerators": gpus}},
            "model": {"preset": "llama3_8b", "num_layers": num_layers, "seq_length": 64, "attention": "flash"},
            "training": {"global_batch_size": gpus, "precision": "bf16", "recompute": "full"},
            "parallelism": {"data": {"method": "zero", "stage": stage}},
            "software": "huggingface_deepspeed",
        }
    )
    return scenario.run().summary()["memory"], sum(layer.parameters for layer in scenario.model.layers)


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_step_holds_copies_of_a_billion_gradients(gpus):
    """2 + 2 + 12 bytes of each parameter of the shard, and 2 + 4 of a sub-group."""
    held, count = step(gpus)
    assert count / gpus > BILLION
    assert held["peak_bytes"] == pytest.approx(16 * count / gpus + 6 * BILLION, rel=1e-3)


def test_a_small_shard_is_one_sub_group():
    held, count = step(4, num_layers=8)
    assert count / 4 < BILLION
    assert held["by_category_bytes"]["gradients"] == pytest.approx(8 * count / 4, rel=1e-3)


def test_stage_2_copies_all_gradients_of_a_shard():
    held, count = step(4, stage=2)
    assert held["by_category_bytes"]["gradients"] == pytest.approx(6 * count / 4, rel=1e-3)
