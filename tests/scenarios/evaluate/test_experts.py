"""Mixtures of experts against published runs that nothing was fitted to (arXiv:2504.14960, table 3)."""

from __future__ import annotations

import pytest

from scenarios import Scenario
from scenarios.build.built import BuiltScenario


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


@pytest.mark.parametrize(("model", "error"), [("Mixtral", 0.1), ("Qwen2", 0.2)])
def test_the_ranking_of_the_strategies(model: str, error: float) -> None:
    """The order of all five is right. Qwen2 with FSDP alone is predicted half again as fast as it ran."""
    found = ratios(model)
    assert len(found) == 5
    simulated_order = sorted(found, key=lambda name: found[name][0])
    assert simulated_order == sorted(found, key=lambda name: found[name][1])
    errors = [abs(simulated / measured - 1) for simulated, measured in found.values()]
    assert sum(errors) / len(errors) < error
