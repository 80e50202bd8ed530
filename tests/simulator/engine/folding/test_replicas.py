"""Folding of one replica of each kind finds the classes that it finds when all replicas are enumerated."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.run.running import communicator, variation
from clustersim.simulator.engine.folding import folding
from clustersim.simulator.engine.folding.folding import Folding
from clustersim.simulator.engine.folding.partition import COMMUNICATION, LINK, RANK
from tests.samples import sample

SLOW: dict[str, Any] = {"simulation.stragglers": [{"rank": 21, "slowdown": 1.5}]}


def folded(scenario: Scenario, monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> Folding:
    with monkeypatch.context() as patch:
        if whole:
            patch.setattr(folding, "equal_replicas", lambda *_: None)
        return Folding(scenario.schedule(), communicator(scenario), variation(scenario), {})


def partition_of_links(found: Folding) -> dict[frozenset[int], int]:
    return {frozenset(links): found.link_multiplicity[first] for first, links in found.equal_links.items()}


def check_equal(settings: dict[str, Any]) -> bool:
    """Compare both ways; return whether there are equal replicas."""
    scenario = Scenario.load("gpt_6_7b_64a100", settings)
    with pytest.MonkeyPatch.context() as monkeypatch:
        few, every = (folded(scenario, monkeypatch, whole=whole) for whole in (False, True))
    assert few.classes[RANK].tolist() == every.classes[RANK].tolist()
    assert few.representative.tolist() == every.representative.tolist()
    assert sorted(few._partition.counts[COMMUNICATION]) == sorted(every._partition.counts[COMMUNICATION])
    assert partition_of_links(few) == partition_of_links(every)
    assert sorted(few.capacity) == sorted(every.capacity)
    assert np.sort(few._network._weight) == pytest.approx(np.sort(every._network._weight), rel=1e-12)
    assert np.sort(few._network._crossings) == pytest.approx(np.sort(every._network._crossings), rel=1e-12)
    assert len(few.classes[LINK]) == len(few._partition.links)
    return len(few._partition.links) < len(every._partition.links)


@pytest.mark.parametrize("order", [["tp", "cp", "dp", "pp"], ["tp", "cp", "pp", "dp"]])
@pytest.mark.parametrize("settings", [{}, SLOW, {"cluster.fabric": {"kind": "rail", "radix": 6}}])
def test_classes_are_those_of_all_replicas(settings: dict[str, Any], order: list[str]) -> None:
    sizes = {"parallelism.tp": 4, "parallelism.pp": 2, "parallelism.dp": 8}
    assert check_equal({**sizes, **settings, "parallelism.rank_order": order})


@pytest.mark.parametrize("case", sample(product([1, 2, 4, 8], [1, 2, 4], [8, 16, 40], [False, True]), 8), ids=str)
def test_classes_are_those_of_all_replicas_of_any_layout(case: tuple[int, int, int, bool]) -> None:
    tp, pp, radix, straggler = case
    sizes = {"parallelism.tp": tp, "parallelism.pp": pp, "parallelism.dp": 64 // tp // pp}
    sizes |= {
        "parallelism.sequence_parallel": tp > 1,
        "training.micro_batch_size": 1,
        "training.global_batch_size": 128,
    }
    fabric = {"cluster.fabric": {"kind": "rail", "radix": radix}}
    check_equal({**sizes, **fabric, **(SLOW if straggler else {})})


def test_a_cable_that_can_be_full_joins_replicas() -> None:
    settings = {"cluster.fabric": {"kind": "fat_tree", "radix": 32, "oversubscription": 2.0}}
    scenario = Scenario.load("gpt_6_7b_64a100", settings)
    assert Folding(scenario.schedule(), communicator(scenario), variation(scenario), {})._replicas is None
