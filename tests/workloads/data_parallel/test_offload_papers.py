"""What ZeRO-Offload and ZeRO-Infinity say fits, and how fast it is at least."""

from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.memory_need import memory_need

WIDTHS = {2048: 16, 4096: 32, 8192: 64, 9216: 72}
"""Attention heads by width, of 128 elements."""

HOST = {"optimizer": "host", "gradients": "host"}


def scenario(
    layers: int, width: int, micro_batch: int, offload: dict[str, str] | None, stage: int = 2, tp: int = 1, dp: int = 1
) -> Scenario:
    """A GPT on one DGX-2, one micro-batch a step."""
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx2"},
            "model": {
                "num_layers": layers,
                "hidden_size": width,
                "num_attention_heads": WIDTHS[width],
                "seq_length": 1024,
                "vocab_size": 50304,
            },
            "training": {
                "global_batch_size": micro_batch * dp,
                "micro_batch_size": micro_batch,
                "precision": "fp16",
                "recompute": "full",
                **({"offload": offload} if offload else {}),
            },
            "parallelism": {"tp": tp, "dp": dp, "data": {"method": "zero", "stage": stage}},
            "software": "megatron_deepspeed",
        }
    )


@pytest.mark.parametrize(
    ("layers", "width", "micro_batch", "offload", "stage", "tp", "dp", "fits"),
    [
        # Ren et al. 2021, section 6.2.1: 1.4 billion parameters on one V100 without offloading, 13 billion with it
        (26, 2048, 1, None, 2, 1, 1, True),
        (40, 2048, 1, None, 2, 1, 1, False),
        (65, 4096, 4, HOST, 2, 1, 1, True),
        (70, 4096, 4, HOST, 2, 1, 1, False),
        # 70 billion on a DGX-2 with tensor parallelism, 15 billion without offloading
        (69, 9216, 8, HOST, 2, 8, 2, True),
        (69, 9216, 8, None, 2, 8, 2, False),
        # DeepSpeed, 2021-03-08-zero3-offload: more than 40 billion on one V100
        (50, 8192, 1, {**HOST, "parameters": "host"}, 3, 1, 1, True),
        # the 1.65 TB of a DGX-2 hold the 16 bytes of 103 billion parameters, and 4 bytes of four times as many
        (125, 8192, 1, {**HOST, "parameters": "host"}, 3, 1, 16, True),
        (130, 8192, 1, {**HOST, "parameters": "host"}, 3, 1, 16, False),
        (250, 8192, 1, {**HOST, "parameters": "host", "optimizer": "nvme"}, 3, 1, 16, True),
    ],
)
def test_what_fits(layers, width, micro_batch, offload, stage, tp, dp, fits):
    one = scenario(layers, width, micro_batch, offload, stage, tp, dp)
    assert memory_need(one, one.schedule()).fits is fits


@pytest.mark.exhaustive
def test_70_billion_on_a_dgx_2_and_100_billion_from_drives_are_as_fast_as_stated():
    # Ren et al. 2021, section 6.2.2: more than 30 TFLOP/s a GPU, with batches of 512; Rajbhandari et al. 2021, figure
    # 5c: more than 40
    with_tensor = scenario(69, 9216, 8, HOST, 2, 8, 2).overridden({"training.global_batch_size": (512, "")})
    assert with_tensor.run().summary()["hardware_tflops_per_gpu"] > 30
    offload: dict[str, Any] = {**HOST, "parameters": "host", "optimizer": "nvme"}
    assert scenario(125, 8192, 24, offload, 3, 1, 16).run().summary()["hardware_tflops_per_gpu"] > 40
