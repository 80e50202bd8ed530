"""Which software stack a scenario takes that names none, and `ideal` as the lower bound of all stacks."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading import lookup
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.default_software_stack import FRAMEWORKS, OTHERS, VERSIONS, default_stack
from clustersim.workloads.software_stack import aliases
from tests.samples import sample

STACKS = [*lookup.names("clustersim.workloads.software"), *aliases()]


@pytest.mark.parametrize(
    ("method", "degrees", "gpu", "expected"),
    [
        ("fsdp", {"tp": 8, "dp": 8}, "h100", "fsdp_sdpa"),
        ("fsdp", {"cp": 2, "dp": 4}, "a100_80gb", "fsdp_sdpa"),
        ("ddp", {"ep": 8, "dp": 8}, "h100", "megatron_core"),
        ("ddp", {"dp": 8}, "tpu_v5e", "xla"),
        ("fsdp", {"dp": 8}, "tpu_v5p", "xla"),
        ("ddp", {"tp": 8, "dp": 8}, "tpu_v7x", "xla"),
        ("zero", {"pp": 2, "dp": 8}, "trainium2", "xla"),
        ("fsdp", {"dp": 8}, "gaudi3", "gaudi"),
        ("ddp", {"tp": 2, "dp": 4}, "gaudi2", "gaudi"),
        ("ddp", {"tp": 2, "dp": 4}, "gh200", "megatron_core"),
        ("ddp", {"tp": 1, "pp": 1, "dp": 8}, "a100_80gb", "ddp_sdpa"),
        ("ddp", {"dp": 8}, "v100_32gb", "ddp"),
        ("fsdp", {"dp": 8}, "v100_16gb", "fsdp"),
        ("fsdp", {"dp": 8}, "a100_80gb", "fsdp_sdpa"),
        ("fsdp", {"dp": 8}, "h100", "fsdp_sdpa"),
        ("ddp", {"tp": 2, "dp": 4}, "a100_80gb", "megatron"),
        ("ddp", {"pp": 2, "dp": 4}, "b200", "megatron_core_2025"),
        ("ddp", {"pp": 2, "dp": 4}, "h800", "megatron_core"),
        ("ddp", {"pp": 2, "dp": 4}, "v100_32gb", "megatron_2021"),
        ("ddp", {"pp": 2, "dp": 4}, "l40s", "megatron"),
    ],
)
def test_the_default_follows_method_and_gpu(method: str, degrees: dict[str, int], gpu: str, expected: str) -> None:
    stack, reason, others = default_stack(method, degrees, device(GPUS, gpu).accelerator(), transformer=True)
    assert stack == expected
    assert gpu in reason
    assert stack not in others
    assert set(others) <= set(STACKS)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("stage", "gpu", "expected"),
    [
        (1, "v100_32gb", "megatron_deepspeed"),
        (1, "a100_80gb", "megatron"),
        (1, "h100", "megatron_core"),
        (1, "b200", "megatron_core_2025"),
        (1, "mi300x", "megatron_core"),
        (2, "a100_80gb", "huggingface_deepspeed"),
        (3, "h100", "huggingface_deepspeed"),
        (3, "v100_32gb", "megatron_deepspeed"),
    ],
)
def test_the_framework_of_zero_follows_its_stage_not_the_degrees(tp: int, stage: int, gpu: str, expected: str) -> None:
    accelerator = device(GPUS, gpu).accelerator()
    assert default_stack("zero", {"tp": tp, "dp": 4}, accelerator, transformer=True, stage=stage).stack == expected


def test_all_generations_with_transformer_engine_are_known() -> None:
    for gpu in lookup.names("clustersim.topologies.gpus"):
        stack = default_stack("ddp", {"tp": 2}, device(GPUS, gpu).accelerator(), transformer=True).stack
        of_transformer_engine = gpu.startswith(("h", "b", "gb", "gh", "mi3"))
        assert stack.startswith("megatron_core") == of_transformer_engine, gpu


def test_a_tpu_has_the_stack_and_the_network_of_tpus() -> None:
    changes = {"cluster": {"preset": "tpu_v5e_pod"}, "parallelism": {"data": {"method": "fsdp"}}}
    named = Scenario.load("llama2_7b_tpu_v5e", changes)
    given = {key: value for key, value in named.source.data.items() if key not in ("software", "network")}
    automatic = Scenario.model_validate(given)
    assert automatic.stack == "xla"
    assert automatic.specification.network.transport == "ici"
    assert automatic.software.context_bytes == 0
    result = automatic.run()
    assert "software: xla, default for fsdp on tpu_v5e" in result.report()
    assert "NCCL" not in result.report()
    other = Scenario.model_validate({**given, "network": {"transport": "nccl"}})
    assert other.specification.network.transport == "nccl"
    collective = {"version": 1, "cluster": changes["cluster"], "collective": {"kind": "all_reduce", "size": "1 GB"}}
    assert Scenario.model_validate(collective).specification.network.transport == "ici"


OWN = {
    "tpu_v4_512": ("xla", "ici", 0),
    "tpu_v5e_pod": ("xla", "ici", 0),
    "tpu_v5p_512": ("xla", "ici", 0),
    "tpu_v6e_pod": ("xla", "ici", 0),
    "tpu_v7x_512": ("xla", "ici", 0),
    "trn2_48xlarge": ("xla", "ici", 0),
    "gaudi2_server": ("gaudi", "nccl", 768 * 2**20),
    "gaudi3_server": ("gaudi", "nccl", 768 * 2**20),
}
"""By cluster of accelerators that run no CUDA: stack, library, and memory of a process without tensors."""


@pytest.mark.parametrize(
    ("name", "named"),
    [*((name, "fsdp") for name in sorted(OWN)), *(("gaudi2_server", named) for named in ("auto", "torch", "megatron"))],
)
def test_what_runs_no_cuda_takes_its_own_stack_whatever_is_named(name: str, named: str) -> None:
    changes = {"cluster": {"preset": name, "nodes": 1}, "training.global_batch_size": 512, "software": named}
    made = Scenario.load("llama3_8b_fsdp_dgx_h100", changes)
    stack, library, context = OWN[name]
    assert made.stack == stack
    assert made.specification.network.transport == library
    assert made.software.context_bytes == context
    assert (f"in place of {named}" in made.stack_choice.reason) == (named in ("fsdp", "megatron"))


def test_a_stack_that_is_not_of_gpus_stays_as_it_is_named() -> None:
    changes = {"cluster": {"preset": "tpu_v6e_pod", "nodes": 1}, "training.global_batch_size": 256}
    assert Scenario.load("llama3_8b_fsdp_dgx_h100", {**changes, "software": "ideal"}).stack == "ideal"


def test_gaudi_2_trains_as_fast_as_measured() -> None:
    # Databricks, LLM Training and Inference with Intel Gaudi 2 AI Accelerators (2024): MPT-7B on eight Gaudi 2 at over
    # 260 TFLOP/s a device. The products' rate is of a benchmark of products alone; nothing is fitted to this run. Batch
    # and recomputation are not told: without recomputation eight samples would not fit
    data = {
        "version": 1,
        "cluster": {"preset": "gaudi2_server", "nodes": 1},
        "model": {"preset": "mpt_7b", "seq_length": 2048},
        "training": {"global_batch_size": 256, "micro_batch_size": 8, "precision": "bf16", "recompute": "full"},
        "parallelism": {"data": {"method": "fsdp"}},
    }
    assert Scenario.model_validate(data).run().summary()["model_tflops_per_gpu"] == pytest.approx(260, rel=0.1)


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


def chosen(method: str, degrees: dict[str, int], **more: Any) -> str:
    return default_stack(method, degrees, device(GPUS, "h100").accelerator(), transformer=True, **more).stack


@pytest.mark.parametrize(
    ("method", "degrees", "stage", "expected"),
    [
        ("ddp", {"dp": 8}, 0, "huggingface"),
        ("zero", {"dp": 8}, 2, "huggingface_deepspeed"),
        ("zero", {"tp": 2, "dp": 4}, 3, "huggingface_deepspeed"),
        ("zero", {"dp": 8}, 1, "megatron_core"),
        ("ddp", {"tp": 2, "dp": 4}, 0, "megatron_core"),
        ("fsdp", {"dp": 8}, 0, "fsdp_sdpa"),
    ],
)
def test_adapters_are_those_of_hugging_face_unless_the_keys_tell_another_framework(
    method: str, degrees: dict[str, int], stage: int, expected: str
) -> None:
    assert chosen(method, degrees, stage=stage, adapters=True) == expected


@pytest.mark.parametrize(
    ("method", "degrees", "years"),
    [
        ("ddp", {"dp": 8}, {2020: "ddp", 2023: "ddp", 2025: "ddp_sdpa", 2026: "ddp_sdpa_2026"}),
        ("fsdp", {"dp": 8}, {2022: "fsdp_2023", 2023: "fsdp", 2025: "fsdp_sdpa", 2026: "fsdp_sdpa_2026"}),
        ("ddp", {"tp": 8}, {2021: "megatron_2021", 2022: "megatron_2023", 2023: "megatron_core"}),
        (
            "zero",
            {"dp": 8},
            {2021: "megatron_deepspeed_2021", 2022: "megatron_deepspeed", 2023: "huggingface_deepspeed"},
        ),
    ],
)
def test_the_year_picks_the_version_of_a_framework(method: str, degrees: dict[str, int], years: dict[int, str]) -> None:
    assert {year: chosen(method, degrees, stage=3, year=year) for year in years} == years


@pytest.mark.parametrize("method", ["ddp", "fsdp", "zero"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_that_is_named_has_a_stack_for_every_method(framework: str, method: str) -> None:
    found = {chosen(method, degrees, stage=3, framework=framework) for degrees in ({"dp": 8}, {"tp": 8})}
    family, jax = ("ddp", "xla_gpu") if method == "ddp" else ("fsdp", "xla")
    assert found == {{"torch": f"{family}_sdpa", "torch_compile": f"{family}_compile", "jax": jax}[framework]}


def test_every_version_and_every_other_is_a_stack() -> None:
    named = {stack for versions in VERSIONS.values() for _, stack in versions}
    assert {*named, *OTHERS, *(one for others in OTHERS.values() for one in others)} <= set(STACKS)
    for versions in VERSIONS.values():
        assert [since for since, _ in versions] == sorted(since for since, _ in versions)


SCENARIOS: dict[str, dict[str, object]] = {
    "dgx_a100_gpt2_xl_ddp": {"model.num_layers": 4, "training.global_batch_size": 256},
    "gpt2_xl_zero_zhores": {"model.num_layers": 4},
    "gpt_6_7b_64a100": {"model.num_layers": 4, "training.global_batch_size": 32},
    "lecture_3d_32gpus": {"model.num_layers": 4, "training.global_batch_size": 32},
    "llama3_8b_fsdp_dgx_h100": {"model.num_layers": 4, "training.global_batch_size": 32},
    "resnet50_one_v100": {"variants": {}},
    "zhores_resnet50_ddp": {},
}
"""Shipped scenarios that price kernels on several GPUs, with few layers and micro-batches: all of them cost the same.
Without variants if one run is enough."""


QUICK = {"resnet50_one_v100"}
"""Those of them in the short suite; each is run with every stack."""


@pytest.mark.parametrize("name", sample(SCENARIOS, heavy=SCENARIOS.keys() - QUICK))
def test_no_stack_is_faster_than_ideal(name: str) -> None:
    def steps(stack: str) -> dict[str, float]:
        scenario = Scenario.load(name, {**SCENARIOS[name], "software": stack})
        runs = scenario.variants or {name: scenario}
        return {one: run.run().timeline.step_time for one, run in runs.items()}

    bound = steps("ideal")
    for stack in STACKS:
        for variant, seconds in steps(stack).items():
            assert seconds >= bound[variant] * (1 - 1e-9), (stack, variant)
