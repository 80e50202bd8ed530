"""`software:` as a mapping: keys beside a preset override it; CUDA graphs free the host of launching each kernel."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import Operation, measured, memory_bound
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.software_stack import specification

LAUNCH = 5e-6
KERNELS = (
    memory_bound(1.0, launches=3, operation=Operation("GELU", "elementwise")),
    memory_bound(1.0, launches=2),
    memory_bound(1.0, launches=7, operation=Operation("cross entropy", "loss")),
    measured(1.0),
)


@pytest.mark.parametrize(("graphs", "launches"), [("none", 3 + 2 + 7), ("layers", 1 + 7), ("step", 0)])
def test_the_host_launches_a_graph_as_one(graphs: Literal["none", "layers", "step"], launches: int) -> None:
    assert Software(launch_seconds=LAUNCH, graphs=graphs).host_seconds(KERNELS) == pytest.approx(launches * LAUNCH)


def test_without_kernels_of_a_layer_there_is_no_graph() -> None:
    software = Software(launch_seconds=LAUNCH, graphs="layers")
    assert software.host_seconds(()) == 0.0
    assert software.host_seconds(KERNELS[2:]) == pytest.approx(7 * LAUNCH)


def scenario(software: Any, *options: str) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100"},
            "model": {"preset": "gpt2"},
            "training": {"global_batch_size": 8, "precision": "bf16"},
            "software": software,
        },
        list(options),
    )


def step_time(*arguments: Any) -> float:
    return float(scenario(*arguments).run().summary()["step_time_s"])


def test_graphs_shorten_a_step_that_the_host_bounds() -> None:
    plain, layers, step = (step_time({"preset": "megatron_core", "graphs": one}) for one in ("none", "layers", "step"))
    assert plain == step_time("megatron_core")
    assert step < layers < 0.7 * plain


def test_a_key_overrides_the_preset_and_no_other() -> None:
    base = specification("fsdp")
    assert scenario({"preset": "fsdp", "launch": "3 us"}).software == base.changed({"launch": 3e-6}).build()
    assert scenario({"preset": "fsdp"}).software == base.build()
    made = scenario({"preset": "fsdp", "launch": "3 us"}).software
    assert made.launch_seconds == 3e-6
    assert made.fused == base.build().fused


def test_keys_without_a_preset_change_the_default_stack() -> None:
    found, default = scenario({"graphs": "layers"}), scenario("auto")
    assert (found.stack, found.software.graphs) == (default.stack, "layers")


@pytest.mark.parametrize(
    ("software", "stack"),
    [
        ("torch_compile", "ddp_compile"),
        ({"preset": "torch_compile", "version": 2025, "graphs": "layers"}, "ddp_compile"),
        ({"preset": "torch_compile", "version": 2026}, "ddp_compile_2026"),
        ({"preset": "ddp_compile", "version": 2026}, "ddp_compile_2026"),
        ({"version": 2022}, "ddp"),
        ({"preset": "megatron", "version": 2022}, "megatron_2023"),
        ({"preset": "llm_foundry", "version": 2022}, "llm_foundry"),
    ],
)
def test_framework_and_version_choose_the_stack(software: Any, stack: str) -> None:
    made = scenario(software)
    keys = software if isinstance(software, dict) else {}
    assert (made.stack, made.software.graphs) == (stack, keys.get("graphs", "none"))
    assert made.software == specification(stack).changed({k: v for k, v in keys.items() if k == "graphs"}).build()


def test_an_option_for_a_key_keeps_the_stack_that_the_scenario_names() -> None:
    made = scenario("megatron_core", "software.graphs=layers")
    assert (made.stack, made.software.graphs) == ("megatron_core", "layers")


def test_compiled_and_fused_replace_each_other() -> None:
    assert scenario({"preset": "ddp", "torch_compile": True}).software.padded
    assert scenario({"preset": "ddp_compile", "fused": False}).software.fused is False


@pytest.mark.parametrize(
    ("software", "told"),
    [
        ({"preset": "megatron_cor"}, "software.preset: must be auto, torch, torch_compile, jax, ddp"),
        ({"graph": "layers"}, "software.graph: unknown key"),
        ({"version": 22}, "software.version: must be at least 2016, not 22"),
        ({"version": "new"}, 'software.version: must be a number, not "new"'),
        ({"graphs": "all"}, "software.graphs: must be none, layers or step"),
        ({"launch": 3}, "software.launch: needs a unit"),
        ({"fused": False, "torch_compile": True}, "software.fused: false contradicts torch_compile: true"),
        (["ddp"], "software: must be"),
    ],
)
def test_bad_keys_are_told(software: Any, told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(software).check()
    assert told in str(error.value)
