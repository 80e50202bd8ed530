"""A collective by an algorithm file of MSCCL, beside the choice of the library."""

from pathlib import Path

import pytest

from clustersim.scenarios.results.result_kinds import CollectiveResult
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from tests.simulator.network.test_msccl import ring

SCENARIO = """\
version: 1
cluster: {preset: dgx_a100_80gb}
collective: {kind: KIND, size: [1 MB, 1 GB]}
network: {algorithms: {KIND: ./algo.xml}}
"""


def scenario(folder: Path, kind: str = "all_reduce", ranks: int = 8) -> Path:
    (folder / "algo.xml").write_text(ring(ranks))
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.replace("KIND", kind))
    return path


def test_the_report_has_the_choice_of_nccl_too(tmp_path: Path) -> None:
    result = Scenario.load(scenario(tmp_path)).run()
    assert isinstance(result, CollectiveResult)
    own, theirs = result.summary()["collective"], result.summary()["library_choice"]
    assert {row["algorithm"] for row in own} == {str(tmp_path / "algo.xml")}
    assert [row["algorithm"] for row in theirs] == ["ring", "ring"]
    assert [row["time_s"] for row in own] == pytest.approx([row["time_s"] for row in theirs], rel=0.1)
    assert "by the choice of nccl" in result.report()


def test_a_file_of_another_collective_or_size_is_refused_at_its_key(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"scenario.yaml:4:36: network.algorithms.all_gather: .* is an all_reduce"):
        Scenario.load(scenario(tmp_path, "all_gather"))
    path = scenario(tmp_path)
    with pytest.raises(ScenarioError, match=r":4:36: network.algorithms.all_reduce: .* is for 8 ranks, and the group"):
        Scenario.load(path, {"cluster.nodes": 2}).run()
    path.write_text(path.read_text().replace("algo.xml", "none.xml"))
    with pytest.raises(ScenarioError, match=r"none.xml: no such file"):
        Scenario.load(path)
