"""Kernels of fine-tuning by PEFT and bitsandbytes on an H200: their number and time, as torch's profiler saw them.

The profiler's time of a kernel ends with it; steps have the pause before the next one too."""

import csv
from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.kernel import Kernel

TABLE = Path(__file__).parents[2] / "scenarios" / "published" / "h200_finetuning.csv"

ROWS = {
    "lora": ("qwen_1_8b", "lora", "huggingface", "full", 2048),
    "lora, nothing recomputed": ("qwen_1_8b", "lora", "huggingface", "none", 2048),
    "lora, adapters in fp32": ("qwen_1_8b", "lora", "huggingface_2025", "full", 2048),
    "lora of 4,096 features": ("qwen_7b", "lora", "huggingface", "full", 2048),
    "qlora": ("qwen_7b", "qlora", "huggingface_2025", "full", 2048),
}


@pytest.fixture(scope="module")
def measured():
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def scenarios():
    return {one.name: one for one in Scenario.load("h200_finetuning").runs}


def pause(measured):
    """Seconds between two kernels, in which the GPU is not busy: of the run that waits least for the host."""
    row = min(measured, key=lambda one: float(one["host_ms"]) / float(one["gpu_busy_ms"]))
    return (float(row["step_ms"]) - float(row["gpu_busy_ms"])) / 1e3 / int(row["kernels"])


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_kernels_are_as_many_and_take_as_long_as_measured(row, measured, scenarios):
    keys = ("model", "trained", "software", "recompute", "seq_length")
    place, seen = next(
        (place, one)
        for place, one in enumerate(measured)
        if tuple(one[key] for key in keys) == (*row[:4], str(row[4]))
        and one["batch"] == "1"
        and one["autocast"] == "bf16"
    )
    scenario = list(scenarios.values())[place].changed({"software.launch": "0 us"}, "kernels alone")
    kernels = [
        kernel
        for program in scenario.schedule().programs
        for op in program.computations()
        for kernel in op.kernels
        if isinstance(kernel, Kernel)
    ]
    assert sum(kernel.launches + kernel.operators for kernel in kernels) == pytest.approx(
        int(seen["kernels"]), rel=0.14
    )
    busy = float(seen["gpu_busy_ms"]) / 1e3 + pause(measured) * int(seen["kernels"])
    assert scenario.run().summary()["step_time_s"] == pytest.approx(busy, rel=0.08)
