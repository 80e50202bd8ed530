"""`check`, `run` and the report give one account of memory, with reserved memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.alternatives.changes import remedies, remedy_line
from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need, of_capacity
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.results.step_numbers import StepNumbers


def tight() -> dict[str, Any]:
    """A scenario whose tensors fit a V100, but not together with the context of CUDA."""
    return {"cluster.nodes": 2, "training.micro_batch_size": 191, "training.global_batch_size": 8 * 191}


def simulated(scenario: Scenario) -> StepNumbers:
    result = scenario.run()
    assert isinstance(result, StepNumbers)
    return result


def test_check_and_run_agree_where_only_reserved_memory_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for key, value in tight().items() for word in ("--set", f"{key}={value}")]
    assert run(["check", "zhores_resnet50_ddp", *options]) == 0
    line = capsys.readouterr().out
    result = simulated(Scenario.load("zhores_resnet50_ddp", tight()))
    assert result.need.tensors < result.need.capacity < result.need.nbytes
    assert f", {result.need} (by an upper bound)\n" in line
    assert f"  {result.need}\n" in result.report()
    assert str(result.need).endswith(": DOES NOT FIT")


@pytest.mark.parametrize("name", ["hello", "gpt2_xl_zero_zhores", "lecture_3d_32gpus"])
def test_the_bound_of_check_is_no_less_than_the_need_of_run(name: str) -> None:
    loaded = Scenario.load(name)
    for scenario in loaded.variants.values() or [loaded]:
        bound, need = memory_need(scenario, scenario.schedule()), simulated(scenario).need
        assert bound.nbytes >= need.nbytes * (1 - 1e-12)
        # fragmentation is that of the activations of the bound, or of the peak
        empty = [one.reserved["fragmentation"] for one in (bound, need)]
        assert empty[0] >= empty[1] * (1 - 1e-12)
        assert {**bound.reserved, "fragmentation": empty[1]} == need.reserved
        assert bound.capacity == need.capacity


def test_the_smallest_gpu_of_a_stage_counts() -> None:
    node = {"intra": {"kind": "nvlink2", "shape": "full_mesh", "bandwidth": "50 GB/s", "latency": "2 us"}, "nics": 1}
    rest = {"accelerators": 2, "host": {"kind": "pcie3", "bandwidth": "12 GB/s", "latency": "3 us"}}
    nic = {"nic": {"kind": "ib_edr", "bandwidth": "100 Gb/s", "latency": "1.5 us"}}
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {
                "nodes": [1, 1],
                "node": [{**node, **rest, **nic, "accelerator": gpu} for gpu in ("a100_80gb", "v100_16gb")],
                "fabric": {"kind": "switch"},
            },
            "model": {"preset": "gpt2_medium"},
            "training": {"global_batch_size": 16, "micro_batch_size": 4, "precision": "fp16"},
        }
    )
    need = memory_need(scenario, scenario.schedule())
    assert need.capacity == scenario.cluster().accelerator(scenario.derived.devices[-1]).memory_bytes
    assert not need.fits
    assert not scenario.run().fits


@given(st.floats(1e3, 1e13), st.floats(1e6, 1e12))
def test_a_need_above_the_capacity_never_reads_as_equal(nbytes: float, capacity: float) -> None:
    needed, _, there = of_capacity(nbytes, capacity).partition(" of ")
    if nbytes > capacity * 1.001:
        assert float(needed) > float(there.split()[0])


def test_a_need_without_bound_has_no_verdict() -> None:
    assert str(MemoryNeed(0, 2e9, float("inf"))) == "needs 2 GB a GPU"


@pytest.mark.parametrize(
    ("name", "overrides", "absent", "present"),
    [
        (
            "llama3_8b_fsdp_dgx_h100",
            {"training.recompute": "none"},
            ("precision", "ZeRO", "selective"),
            "recompute: full",
        ),
        ("zhores_resnet50_ddp", {}, ("selective", "tp"), "ZeRO-1 (data: {method: zero, stage: 1})"),
        (
            "gpt3_175b_1024a100",
            {"training.recompute": "full"},
            ("recompute", "micro_batch_size", "precision"),
            "ZeRO-1",
        ),
    ],
)
def test_remedies_name_nothing_that_is_so_already(
    name: str, overrides: dict[str, Any], absent: tuple[str, ...], present: str
) -> None:
    told = ", ".join(one.text for one in remedies(Scenario.load(name, overrides)))
    assert present in told
    assert not [word for word in absent if word in told]


def test_a_remedy_that_does_not_suffice_is_not_told_as_one() -> None:
    # a micro-batch of 2 still needs more than the GPU has, and tp 2 alone would double the micro-batch
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h200", "nodes": 4},
            "model": {"preset": "llama3_8b"},
            "training": {"global_batch_size": 128, "precision": "bf16"},
            "parallelism": {"data": {"method": "fsdp"}},
        }
    )
    told = remedy_line(scenario)
    assert "micro_batch_size: 1 (now 4) (88.6 of 150.8 GB)" in told
    assert "recompute: full (88.6 of 150.8 GB)" in told
    # two copies of a batch of four in torch's FSDP, 208 GB
    assert "tp: 2" not in told
    assert "micro_batch_size: 2" not in told
    smaller = scenario.changed({"cluster.preset": "dgx_h100"}, "smaller")
    assert remedy_line(smaller).startswith("nothing suffices alone; try several of ")
    for remedy in remedies(scenario):
        changed = scenario.changed(remedy.values, remedy.text)
        assert memory_need(changed, changed.schedule()).fits == (remedy.text in told)
