"""Mixtures of experts against published runs that nothing was fitted to (arXiv:2504.14960, table 3)."""

from __future__ import annotations

from functools import cache

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.built import BuiltScenario

pytestmark = pytest.mark.exhaustive

MIXTRAL = "Mixtral"


@cache
def ratios(model: str) -> dict[str, tuple[float, float]]:
    """(simulated, measured) MFU by strategy."""
    found = {}
    for name, variant in Scenario.load("moe_parallel_folding").variants.items():
        if name.startswith(model):
            measured = variant.specification.expect["mfu"].value
            found[name] = _mfu(variant), float(measured)
    return found


def _mfu(variant: BuiltScenario) -> float:
    assert isinstance(variant, Scenario)
    return float(variant.run().summary()["mfu"])


RANKED = pytest.mark.xfail(strict=True, reason="FSDP with experts is predicted slower than Megatron Core's own layout")


@pytest.mark.parametrize("model", [MIXTRAL, pytest.param("Qwen2", marks=RANKED)])
def test_the_ranking_of_the_strategies(model: str) -> None:
    """The order of all five is right."""
    found = ratios(model)
    assert len(found) == 5
    simulated_order = sorted(found, key=lambda name: found[name][0])
    assert simulated_order == sorted(found, key=lambda name: found[name][1])


QWEN2 = pytest.mark.xfail(strict=True, reason="with FSDP alone it is predicted half again as fast as it ran")


@pytest.mark.parametrize("model", [MIXTRAL, pytest.param("Qwen2", marks=QWEN2)])
def test_the_mean_error_of_the_strategies(model: str) -> None:
    errors = [abs(simulated / measured - 1) for simulated, measured in ratios(model).values()]
    assert sum(errors) / len(errors) < 0.1
