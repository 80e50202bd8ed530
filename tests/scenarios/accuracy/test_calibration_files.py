"""Calibration files in scenarios: paths are relative to the scenario, and faults are reported at their position."""

from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.simulator.reading.errors import ScenarioError

CALIBRATION = """
version: 1
library: gloo
transport:
  hop_latency: {NVLINK: {ring: {tcp: 1 ms}}}
  base_latency: {ring: {tcp: 5 ms}}
cluster: {preset: uniform, gpus: 4, bandwidth: 1 GB/s, latency: 0 s}
accelerator: {preset: v100_16gb, memory: 12 GiB}
"""
SCENARIO = """
version: 1
cluster: {preset: measured.yaml, gpus: 3}
collective: {kind: all_gather, size: 3 kB}
network: {transport: measured.yaml}
variants:
  measured: {}
  other: {network.transport: ideal}
  again: {network: {transport: measured.yaml}, cluster.accelerator: measured.yaml}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A scenario and a calibration file in one folder, which is not the working directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here" / "measured.yaml").write_text(CALIBRATION)
    (tmp_path / "here" / "scenario.yaml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def seconds(result):
    return result.summary()["collective"][0]["time_s"]


def test_paths_begin_at_the_scenario(folder):
    scenario = Scenario.load(folder / "here" / "scenario.yaml")
    assert len(scenario.cluster().gpus) == 3
    times = {name: seconds(one.run()) for name, one in scenario.variants.items()}
    # two rounds of 1 ms, after 5 ms; 2 kB at a share of 1 GB/s take a few us
    assert times["measured"] == pytest.approx(7e-3, rel=1e-3)
    assert times["again"] == times["measured"]
    assert times["other"] == pytest.approx(2e-6, rel=1e-6)
    accelerator = scenario.variants["again"].cluster().accelerator("gpu 0")
    assert (accelerator.name, accelerator.memory_bytes) == ("v100_16gb", 12 * 2**30)


MEASURED_STACK = "version: 1\nsoftware: {name: measured, preset: ddp, launch: 25 us, source: measured}\n"
TRAINING = """
version: 1
cluster: {preset: dgx_h100, nodes: 1}
model: {preset: gpt2}
training: {global_batch_size: 8}
software: measured.yaml
variants:
  again: {software: {preset: measured.yaml}}
  faster: {software.launch: 5 us}
"""


def test_a_path_of_a_measured_stack_begins_at_the_scenario(folder):
    (folder / "here" / "measured.yaml").write_text(MEASURED_STACK)
    (folder / "here" / "training.yaml").write_text(TRAINING)
    scenario = Scenario.load(folder / "here" / "training.yaml")
    launches = {name: one.software.launch_seconds for name, one in scenario.variants.items()}
    assert launches == pytest.approx({"again": 25e-6, "faster": 5e-6})


def test_a_measured_stack_without_a_source(folder):
    (folder / "here" / "measured.yaml").write_text(MEASURED_STACK.replace(", source: measured", ""))
    (folder / "here" / "training.yaml").write_text(TRAINING)
    with pytest.raises(ScenarioError, match=r"measured\.yaml:2:1: source: is required"):
        Scenario.load(folder / "here" / "training.yaml")


def test_a_path_in_an_option_is_relative_to_the_working_folder(folder):
    Path("mine.yaml").write_text(CALIBRATION.replace("5 ms", "50 ms"))
    found = Scenario.load("allreduce_dgx_a100", options=["network.transport=mine.yaml", "collective.size=8 B"])
    assert seconds(found.run()) > 50e-3


def test_paths_in_a_written_scenario_work_from_any_folder(folder, capsys, monkeypatch):
    assert run(["run", str(folder / "here" / "scenario.yaml"), "-o", "out"]) == 0
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert run(["run", "elsewhere/out", "--json"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("{transport: measured.yaml}\n", "{transport: absent.yaml}\n"),
            r"scenario\.yaml:5:22: network\.transport: absent\.yaml: no such file",
        ),
        (
            ("{preset: measured.yaml,", "{preset: absent.yaml,"),
            r"scenario\.yaml:3:19: cluster\.preset: absent\.yaml: no such file",
        ),
        (
            ("cluster.accelerator: measured.yaml", "cluster.accelerator: absent.yaml"),
            r"scenario\.yaml:9:69: variants\.again\.cluster\.accelerator: absent\.yaml: no such file",
        ),
    ],
)
def test_a_missing_file(folder, change, message):
    path = folder / "here" / "scenario.yaml"
    path.write_text(SCENARIO.replace(*change))
    with pytest.raises(ScenarioError, match=message):
        Scenario.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("1 ms", "1"), r'measured\.yaml:5:38: transport\.hop_latency\.NVLINK\.ring\.tcp: needs a unit, e\.g\. "3 us"'),
        (("library: gloo", "library: glow"), r'measured\.yaml:3:10: library: must be nccl, gloo, ici or ideal.*"glow"'),
        (("gpus: 4", "gpu: 4"), r"measured\.yaml:7:28: cluster\.gpu: unknown key"),
        (
            ("preset: uniform", "preset: other.yaml"),
            r"measured\.yaml:7:19: preset: must be the name of a cluster: a file",
        ),
        (("12 GiB", "12 GHz"), r'measured\.yaml:8:42: .*memory: "GHz" is not a unit of size'),
    ],
)
def test_a_fault_is_reported_with_the_line_of_the_file(folder, change, message):
    path = folder / "here" / "measured.yaml"
    path.write_text(CALIBRATION.replace(*change))
    with pytest.raises(ScenarioError, match=message):
        Scenario.load(folder / "here" / "scenario.yaml")
