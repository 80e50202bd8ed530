"""Which software stack a scenario takes that names none, and `ideal` as the lower bound of all stacks."""

from __future__ import annotations

import pytest

from scenarios import Scenario
from simulator import lookup
from topologies.catalogue import GPUS, device
from workloads.default_stack import default_stack

STACKS = lookup.names("workloads.software")


@pytest.mark.parametrize(
    ("method", "degrees", "gpu", "expected"),
    [
        ("ddp", {"tp": 1, "pp": 1, "dp": 8}, "a100_80gb", "ddp_sdpa"),
        ("ddp", {"dp": 8}, "v100_32gb", "ddp"),
        ("fsdp", {"dp": 8}, "v100_16gb", "fsdp"),
        ("fsdp", {"dp": 8}, "a100_80gb", "fsdp_sdpa"),
        ("fsdp", {"dp": 8}, "h100", "fsdp_sdpa"),
        ("zero", {"dp": 8}, "a100_80gb", "megatron_deepspeed"),
        ("zero", {"tp": 2, "dp": 4}, "h100", "megatron_core"),
        ("ddp", {"tp": 2, "dp": 4}, "a100_80gb", "megatron"),
        ("ddp", {"pp": 2, "dp": 4}, "b200", "megatron_core"),
        ("ddp", {"pp": 2, "dp": 4}, "v100_32gb", "megatron_2021"),
        ("ddp", {"pp": 2, "dp": 4}, "l40s", "megatron"),
    ],
)
def test_the_default_follows_method_and_gpu(method: str, degrees: dict[str, int], gpu: str, expected: str) -> None:
    stack, reason = default_stack(method, degrees, device(GPUS, gpu).accelerator(), transformer=True)
    assert stack == expected
    assert gpu in reason


def test_models_that_are_no_transformers_are_trained_by_torch_itself() -> None:
    gpu = device(GPUS, "h100").accelerator()
    assert default_stack("ddp", {"pp": 4}, gpu, transformer=False)[0] == "ddp"
    assert default_stack("fsdp", {"pp": 1}, gpu, transformer=False)[0] == "fsdp"


def test_report_and_derived_values_tell_the_stack() -> None:
    training = {"global_batch_size": 16, "precision": "bf16"}
    data = {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
        "model": {"preset": "gpt2"},
        "training": training,
        "parallelism": {"data": {"method": "fsdp"}},
    }
    automatic = Scenario.model_validate(data)
    assert automatic.stack == "fsdp_sdpa"
    assert "software: fsdp_sdpa, default for fsdp on a100_80gb" in automatic.run().report()
    named = Scenario.model_validate({**data, "software": "fsdp_sdpa"})
    assert "clustersim list software" not in named.run().report()
    assert automatic.run().summary()["step_time_s"] == named.run().summary()["step_time_s"]


SCENARIOS: dict[str, dict[str, object]] = {
    "dgx_a100_gpt2_xl_ddp": {},
    "gpt2_xl_zero_zhores": {},
    "gpt_6_7b_64a100": {},
    "lecture_3d_32gpus": {},
    "llama3_8b_fsdp_dgx_h100": {},
    "resnet50_one_v100": {"variants": {}},
    "zhores_resnet50_ddp": {},
}
"""Shipped scenarios that price kernels on several GPUs, and what is changed so that one run is left."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_stack_is_faster_than_ideal(name: str) -> None:
    def steps(stack: str) -> dict[str, float]:
        scenario = Scenario.load(name, {**SCENARIOS[name], "software": stack})
        runs = scenario.variants or {name: scenario}
        return {one: run.run().timeline.step_time for one, run in runs.items()}

    bound = steps("ideal")
    for stack in STACKS:
        for variant, seconds in steps(stack).items():
            assert seconds >= bound[variant] * (1 - 1e-9), (stack, variant)
