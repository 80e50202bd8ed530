"""What reports print of small, long and impossible numbers, and of presets with changed sizes."""

from __future__ import annotations

import re

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.description import model_title
from clustersim.simulator.charts import text_report
from clustersim.simulator.reading.units import show_long


def test_rounding_is_no_bubble() -> None:
    for name in ("zhores_resnet50_ddp", "hello", "llama3_8b_fsdp_dgx_h100"):
        (parts,) = Scenario.load(name).run().breakdowns.values()
        assert all(seconds == 0 or seconds > 1e-12 * sum(parts.values()) for seconds in parts.values())


def test_a_difference_by_rounding_is_none() -> None:
    lines = text_report.comparison({"a": {"compute": 1.0}, "b": {"compute": 1.0 + 1.4e-17 + 2e-16}}).splitlines()
    assert all(line.endswith("=") for line in lines[1:])
    assert "+1 ms" in text_report.comparison({"a": {"compute": 1.0}, "b": {"compute": 1.001}})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3580.4, "59.7 minutes"), (7200.0, "2 hours"), (86_400.0 * 34.2, "34.2 days"), (0.0, "0 s"), (40.0, "40 s")],
)
def test_a_training_is_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert show_long(seconds) == text


def test_a_report_has_no_fraction_of_a_day() -> None:
    told = Scenario.load("zhores_resnet50_ddp").run().report()
    assert re.search(r"whole training: 1\.\d\d hours", told)
    assert not re.search(r"\d[eE][-+]\d", told)


def test_a_preset_with_other_sizes_says_so() -> None:
    def title(**changed: object) -> str:
        return model_title(Scenario.load("gpt3_175b_1024a100", {f"model.{key}": v for key, v in changed.items()}))

    assert title() == "gpt3-175b"
    assert title(num_layers=96) == "gpt3-175b"
    assert title(num_layers=48) == "gpt3-175b with 48 layers"
    assert title(num_layers=48, seq_length=1024) == "gpt3-175b with 48 layers and sequences of 1024"
    assert title(num_layers=48, name="mine") == "mine"


def test_mfu_above_100_percent_has_a_note() -> None:
    ideal = {"software": "ideal", "network.transport": "ideal", "training.recompute": "none"}
    small = {"model.num_layers": 2, "training.global_batch_size": 16, "training.micro_batch_size": 1}
    # all products at the peak, and nearly all of them attention, of which half runs
    gpu = {"preset": "h100", "matmul_efficiency": 1.0}
    gpu |= {"cudnn_attention_efficiency": 1.0, "cudnn_attention_backward": 1.0}
    long = {"model.seq_length": 262_144, "cluster.node.accelerator": gpu}
    result = Scenario.load("llama3_8b_fsdp_dgx_h100", {**ideal, **small, **long}).run()
    assert result.summary()["mfu"] > 1
    assert "note: MFU above 100 %: model FLOPs count the whole square of attention" in result.report()
    assert "above 100 %" not in Scenario.load("zhores_resnet50_ddp").run().report()
