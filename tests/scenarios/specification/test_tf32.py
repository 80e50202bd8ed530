"""`training.precision: tf32` is fp32 with products on tensor cores: the same bytes, less time."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError


def run(precision: str, model: str = "gpt2", gpu: str = "a100_80gb", **training: Any) -> dict[str, Any]:
    document = {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb", "node": {"accelerator": gpu}},
        "model": {"preset": model},
        "training": {"global_batch_size": 32, "micro_batch_size": 4, "precision": precision, **training},
    }
    return Scenario.model_validate(document).run().summary()


@pytest.mark.parametrize("model", ["gpt2", "vit_b_16"])
def test_bytes_are_those_of_fp32_and_products_are_faster(model: str) -> None:
    fp32, tf32, bf16 = (run(precision, model) for precision in ("fp32", "tf32", "bf16"))
    for same in ("memory", "traffic_bytes"):
        assert tf32[same] == fp32[same]
    assert bf16["step_time_s"] < tf32["step_time_s"] < fp32["step_time_s"]


def test_convolutions_take_tf32_anyway() -> None:
    """torch's default for cuDNN; the one product with weights that are no convolution's is the classifier."""
    fp32, tf32 = (run(precision, "resnet50") for precision in ("fp32", "tf32"))
    assert tf32["step_time_s"] == pytest.approx(fp32["step_time_s"], rel=0.01)


def test_a_gpu_without_tf32_is_told() -> None:
    with pytest.raises(ScenarioError, match=r"training\.precision: v100_32gb has no tf32; take fp32"):
        run("tf32", gpu="v100_32gb")
    with pytest.raises(ScenarioError, match=r"training\.gradient_dtype: must be bf16, fp16 or fp32"):
        run("fp32", gradient_dtype="tf32")
