"""The algorithm of a collective as a file of MSCCL: written, read again, and as fast."""

from pathlib import Path

import pytest

from clustersim.scenarios.exchange.export import exporter, write
from clustersim.scenarios.results.result_kinds import CollectiveResult
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError

SCENARIO = """\
version: 1
cluster: {preset: dgx_a100_80gb}
collective: {kind: all_reduce, size: [1 MB, 1 GB]}
"""


def scenario(folder: Path, text: str = SCENARIO) -> Path:
    path = folder / "one.yaml"
    path.write_text(text)
    return path


def test_the_ring_of_nccl_takes_as_long_when_it_is_read_again(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    (path,) = write(exporter("msccl")(Scenario.load(given)), tmp_path / "ring.xml")
    result = Scenario.load(given, {"network.algorithms.all_reduce": str(path)}).run()
    assert isinstance(result, CollectiveResult)
    own, theirs = result.summary()["collective"], result.summary()["library_choice"]
    assert [row["time_s"] for row in own] == pytest.approx([row["time_s"] for row in theirs], rel=0.05)


def test_what_cannot_be_written_is_refused_at_its_key(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    with pytest.raises(
        ScenarioError, match=r"one.yaml:3:20: collective.kind: cannot be written for MSCCL: .* switches"
    ):
        exporter("msccl")(Scenario.load(path, {"cluster.preset": "dgx_h100", "collective.size": "1 GB"}))
    with pytest.raises(ScenarioError, match=r"msccl writes the algorithm of one collective"):
        exporter("msccl")(Scenario.load("scenarios/hello.yaml"))
