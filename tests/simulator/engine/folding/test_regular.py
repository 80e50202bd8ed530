"""A regular cluster, whose groups are placed all at once, and the same cluster group by group have equal results."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.scenarios import Scenario
from tests.samples import sample

FABRICS: dict[str, dict[str, Any]] = {
    "two levels": {},
    "four levels": {"cluster.fabric": {"kind": "rail", "radix": 6}},
    "an oversubscribed fat tree": {"cluster.fabric": {"kind": "fat_tree", "radix": 32, "oversubscription": 2.0}},
    "a slow link": {"cluster.degraded": [{"link": ["gpu 17", "nic 17"], "bandwidth": 0.5}]},
}


def summary(settings: dict[str, Any], *, regular: bool) -> dict[str, Any]:
    scenario = Scenario.load("gpt_6_7b_64a100", settings)
    if not regular:
        scenario.cluster().__dict__["regularity"] = None
    assert (scenario.cluster().regularity is not None) == regular
    found = scenario.run().summary()
    found["simulation"].pop("wall_s", None)
    return found


@pytest.mark.parametrize("fabric", sample(FABRICS, heavy=["four levels", "an oversubscribed fat tree"]))
def test_regular_and_enumerated_clusters_have_equal_results(fabric: str) -> None:
    settings = FABRICS[fabric]
    assert summary(settings, regular=True) == summary(settings, regular=False)
