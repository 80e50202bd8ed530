"""A collective by an algorithm file of MSCCL or MSCCL++, beside the choice of the library."""

import json
from pathlib import Path

import pytest

from clustersim.scenarios.results.result_kinds import CollectiveResult
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from tests.simulator.network.algorithm_files.test_msccl import ring
from tests.simulator.network.algorithm_files.test_mscclpp import PLANS, all_pairs

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


def test_a_plan_of_mscclpp_is_compared_with_the_choice_of_nccl(tmp_path: Path) -> None:
    """A reduction and a copy between all pairs: as many bytes as a ring, in 3 latencies instead of 2 (p - 1)."""
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace("algo.xml", "plan.json").replace("1 MB", "8 KB"))
    (tmp_path / "plan.json").write_text(json.dumps(all_pairs(8)))
    result = Scenario.load(path).run()
    own, theirs = result.summary()["collective"], result.summary()["library_choice"]
    assert own[0]["time_s"] < theirs[0]["time_s"]
    assert own[1]["time_s"] == pytest.approx(theirs[1]["time_s"], rel=0.1)


def test_switches_that_add_are_required(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace("./algo.xml", str(PLANS / "reduce_nvls.json")))
    with pytest.raises(
        ScenarioError, match=r":4:36: .*reduce_nvls.json needs GPUs of one server behind switches of nv"
    ):
        Scenario.load(path, {"collective.ranks": 2}).run()
    Scenario.load(path, {"collective.ranks": 2, "cluster.preset": "dgx_h100"}).run()


def test_thread_blocks_beyond_the_sms_are_refused(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    idle = "".join(f'<tb id="{number}" send="-1" recv="-1" chan="0"></tb>' for number in range(1, 110))
    (tmp_path / "algo.xml").write_text(ring(8).replace("</tb></gpu>", f"</tb>{idle}</gpu>", 1))
    with pytest.raises(ScenarioError, match=r":4:36: .* has 110 thread blocks on a GPU, and .* holds 108 at once"):
        Scenario.load(path).run()
