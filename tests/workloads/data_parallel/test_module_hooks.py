"""Hooks of ZeRO-3: how often they run, in which phase, and that they only take time of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.accelerator import Software
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.parallelism.zero import hook_operators

HOOKED = Software("hooked", module_hooks=1, fetch_hooks=10, gradient_hooks=100)

LAYER = OperatorLayer("layer", "transformer", (Linear(1, 64, 64), Linear(1, 64, 256), Linear(1, 4, 64)), 1.0)
"""Seven modules: the layer, attention, MLP, an activation, three products; the last fills a sixteenth of a bucket."""


@pytest.mark.parametrize(
    ("phase", "kept", "expected"),
    [("F", False, 37), ("R", True, 37), ("B", True, 213), ("B", False, 243), ("I", True, 7), ("W", True, 206)],
)
def test_modules_fetches_and_buckets_are_counted_by_phase(phase: str, kept: bool, expected: int) -> None:
    """7 passes, 3 fetches unless the recomputation gathered them, and 2 1/16 buckets of 64 x 64 elements, rounded."""
    assert round(100 * 2.0625) == 206
    assert hook_operators(LAYER, phase, HOOKED, kept=kept) == expected


def test_frozen_products_reduce_no_gradient() -> None:
    frozen = replace(LAYER, operators=tuple(replace(one, frozen=True) for one in LAYER.operators))  # type: ignore[type-var]
    assert hook_operators(frozen, "B", HOOKED, kept=True) == 7


def step_seconds(count: int) -> float:
    """A step of a narrow model on one rank of ZeRO-3, whose hooks take *count* operators for a pass of a module."""
    scenario = {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb", "nodes": 1, "node": {"accelerators": 1}},
        "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "seq_length": 16, "vocab_size": 64},
        "training": {"global_batch_size": 1, "precision": "bf16"},
        "parallelism": {"data": {"method": "zero", "stage": 3}},
        "software": {"preset": "huggingface_deepspeed", "module_hooks": count, "fetch_hooks": 0, "gradient_hooks": 0},
    }
    return float(Scenario.model_validate(scenario).run().timeline.step_time)


def test_a_step_on_one_rank_waits_for_hooks_too() -> None:
    """Each pass of each of two layers waits for the hooks of at least nine modules, 8 us for an operator."""
    more, most = (step_seconds(count) - step_seconds(0) for count in (1000, 2000))
    assert most == pytest.approx(2 * more, rel=0.02)
    assert more > 2 * 2 * 9 * 1000 * 8e-6
