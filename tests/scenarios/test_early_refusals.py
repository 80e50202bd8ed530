"""What a run refuses, `check` refuses too, at the same place; and names by import path are those names."""

import json
from pathlib import Path

import pytest

from scenarios.command import run
from scenarios.scenario import Scenario
from simulator.lookup import plain
from topologies.catalogue import GPUS, device

MODEL = """\
version: 1
cluster: {preset: dgx_a100_80gb, nodes: 1}
model: {preset: gpt2}
training: {global_batch_size: 16, micro_batch_size: 1}
"""

VARUNA = "parallelism: {pp: 4, schedule: varuna}\n"

COLLECTIVE = """\
version: 1
cluster: {preset: dgx_a100_80gb, nodes: 2}
collective: {kind: all_reduce, size: [1 KB, 1 MB]}
"""

LATE = {
    "heads": MODEL + "parallelism: {tp: 8}\n",
    "layout": MODEL + "parallelism: {pp: 4, layout: [1, 2, 3]}\n",
    "layout of other layers": MODEL + "parallelism: {pp: 4, layout: [1, 2, 3, 4]}\n",
    "recompute, full": MODEL.replace("size: 1}", "size: 1, recompute: full}") + VARUNA,
    "recompute, selective": MODEL.replace("size: 1}", "size: 1, recompute: selective}") + VARUNA,
    "nvls of a collective": COLLECTIVE + "network: {algorithms: {all_reduce: nvls}}\n",
    "nvls of an axis": MODEL + "network: {algorithms: {all_reduce: ring, dp.all_reduce: nvls}}\n",
    "a transport that is none": COLLECTIVE + "network: {transport: simulator.network.transport.channels}\n",
}
"""Scenarios that a run refuses."""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def err(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments]) == 2
    out, told = capsys.readouterr()
    assert out == ""
    return told


@pytest.mark.parametrize("case", LATE)
def test_check_refuses_what_a_run_refuses(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(LATE[case])
    told = err(capsys, "check", "bad.yaml")
    assert told == err(capsys, "run", "bad.yaml", "--json")
    assert told.startswith("bad.yaml:")


def test_an_algorithm_that_the_servers_lack_is_told_at_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(LATE["nvls of an axis"])
    assert err(capsys, "check", "bad.yaml").splitlines()[0] == (
        "bad.yaml:5:57: network.algorithms.dp.all_reduce: all_reduce over dp: nvls needs GPUs of one server behind "
        "switches of nvlink4 or nvlink5; try auto"
    )


def test_an_algorithm_that_the_servers_have_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    one = COLLECTIVE.replace("dgx_a100_80gb, nodes: 2", "dgx_h100, nodes: 1")
    Path("good.yaml").write_text(one + "network: {algorithms: {all_reduce: nvls}}\n")
    assert run(["check", "good.yaml"]) == 0
    capsys.readouterr()
    assert run(["run", "good.yaml", "--json"]) == 0
    assert {row["algorithm"] for row in json.loads(capsys.readouterr().out)["collective"]} == {"nvls"}


@pytest.mark.parametrize(
    ("key", "name", "path"),
    [
        ("network.transport", "nccl", "simulator.network.transport.nccl"),
        ("software", "megatron", "workloads.software.megatron"),
        ("network.algorithms.all_reduce", "ring", "simulator.network.collectives.ring"),
        ("cluster.node.accelerator", "a100_80gb", "topologies.gpus.a100_80gb"),
        ("cluster.node.nic.kind", "ib_hdr", "topologies.links.ib_hdr"),
        ("cluster.node.intra.kind", "nvlink3", "topologies.links.nvlink3"),
        ("parallelism.schedule", "gpipe", "workloads.pipelines.gpipe"),
    ],
)
def test_the_import_path_of_a_shipped_file_is_its_name(key: str, name: str, path: str) -> None:
    Path("one.yaml").write_text(MODEL)

    def summary(value: str) -> dict[str, object]:
        made = Scenario.load("one.yaml", {key: value, "cluster.nodes": 2}).run().summary()
        made["simulation"].pop("wall_s")
        return made

    assert summary(path) == summary(name)


def test_only_the_import_path_of_a_file_of_the_folder_becomes_its_name() -> None:
    assert plain("workloads.software", "mylab.software.megatron") == "mylab.software.megatron"
    assert plain("workloads.software", "workloads.software.none") == "workloads.software.none"
    assert plain("topologies.gpus", "topologies.gpus.yaml") == "topologies.gpus.yaml"
    assert device(GPUS, "topologies.gpus.a100_80gb").name == "a100_80gb"


@pytest.mark.parametrize(
    ("chart", "what"), [("memory", "chart of memory"), ("pipeline", "pipeline order"), ("critical", "critical path")]
)
def test_a_collective_has_no_chart_of_training(chart: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = err(capsys, "plot", "allreduce_dgx_a100", chart)
    assert told == f"allreduce_dgx_a100 measures a collective; it has no {what}\n"
    assert not list(Path().iterdir())


def test_a_model_that_holds_nothing_has_no_chart_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    Path("unit.yaml").write_text(
        "version: 1\ncluster: {preset: uniform, gpus: 2, bandwidth: 1 GB/s, latency: 1 us}\n"
        "model: {kind: unit, num_layers: 2, forward: 1 s, backward: 2 s}\ntraining: {global_batch_size: 2}\n"
    )
    assert "nothing is held in memory; a chart of memory needs " in err(capsys, "plot", "unit.yaml", "memory")
