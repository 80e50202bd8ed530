"""What a run refuses, `check` refuses too, at the same place; and names by import path are those names."""

import json
from pathlib import Path

import pytest

from clustersim.scenarios.build.memory_need import memory_need
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.lookup import plain
from clustersim.simulator.simulate import SimulationRun
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.memory.offload_and_recompute import Programme

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

V100 = MODEL.replace("dgx_a100_80gb", "dgx1")
LORA = MODEL.replace("{preset: gpt2}", "{preset: gpt2, lora: {rank: 4, targets: all}}")
NEXT = MODEL.replace("{preset: gpt2}", "{preset: gpt2, num_nextn_predict_layers: 1}")
UNIT = V100.replace("{preset: gpt2}", "{kind: unit, num_layers: 4, forward: 1 ms, backward: 2 ms}")
T5 = MODEL.replace("gpt2", "t5_11b")

LATE = {
    "a grid of ranks, adapters": LORA + "parallelism: {tp: {x: 2, y: 2}}\n",
    "a square of ranks, adapters": LORA + "parallelism: {tp: 4, tp_mode: 2d}\n",
    "a grid of ranks, next tokens": NEXT + "parallelism: {tp: {x: 2, y: 2}}\n",
    "a grid of ranks, encoder and decoder": T5 + "parallelism: {tp: {x: 2, y: 2}}\n",
    "a grid that is chosen, adapters": LORA + "parallelism: {tp: auto}\n",
    "bf16 on a V100, given durations": UNIT.replace("size: 1}", "size: 1, precision: bf16}"),
    "Muon on a V100": V100.replace("size: 1}", "size: 1, optimizer: muon}"),
    "Muon on a server's host": MODEL.replace("size: 1}", "size: 1, optimizer: muon}")
    + "parallelism: {data: {method: parameter_server, servers: 1}}\n",
    "a budget that no recomputation meets": MODEL.replace(
        "size: 1}", "size: 1, recompute: {method: optimal, budget: 10 MB}}"
    ),
    "a budget that no copies meet": MODEL.replace("size: 1}", "size: 1, offload: {activations: auto, budget: 10 MB}}"),
    "a plan in an order that updates at once": MODEL.replace(
        "size: 1}", "size: 1, recompute: optimal, offload: {optimizer: host}}"
    )
    + "parallelism: {pp: 4, schedule: pipedream_2bw}\n",
    "heads": MODEL + "parallelism: {tp: 8}\n",
    "layout": MODEL + "parallelism: {pp: 4, layout: [1, 2, 3]}\n",
    "layout of other layers": MODEL + "parallelism: {pp: 4, layout: [1, 2, 3, 4]}\n",
    "recompute, full": MODEL.replace("size: 1}", "size: 1, recompute: full}") + VARUNA,
    "recompute, selective": MODEL.replace("size: 1}", "size: 1, recompute: selective}") + VARUNA,
    "nvls of a collective": COLLECTIVE + "network: {algorithms: {all_reduce: nvls}}\n",
    "nvls of an axis": MODEL + "network: {algorithms: {all_reduce: ring, dp.all_reduce: nvls}}\n",
    "a transport that is none": COLLECTIVE + "network: {transport: clustersim.simulator.network.library.tuner}\n",
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
        ("network.transport", "nccl", "clustersim.simulator.network.library.nccl"),
        ("software", "megatron", "clustersim.workloads.software.megatron"),
        ("network.algorithms.all_reduce", "ring", "clustersim.simulator.network.collectives.ring"),
        ("cluster.node.accelerator", "a100_80gb", "clustersim.topologies.gpus.a100_80gb"),
        ("cluster.node.nic.kind", "ib_hdr", "clustersim.topologies.links.ib_hdr"),
        ("cluster.node.intra.kind", "nvlink3", "clustersim.topologies.links.nvlink3"),
        ("parallelism.schedule", "gpipe", "clustersim.workloads.pipelines.gpipe"),
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
    assert plain("clustersim.workloads.software", "mylab.software.megatron") == "mylab.software.megatron"
    assert (
        plain("clustersim.workloads.software", "clustersim.workloads.software.none")
        == "clustersim.workloads.software.none"
    )
    assert plain("clustersim.topologies.gpus", "clustersim.topologies.gpus.yaml") == "clustersim.topologies.gpus.yaml"
    assert device(GPUS, "clustersim.topologies.gpus.a100_80gb").name == "a100_80gb"


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


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism.data": {"method": "parameter_server", "servers": 2}},
        {"parallelism.pp": 2, "parallelism.cp": 2},
    ],
    ids=str,
)
def test_layers_are_measured_beside_servers_and_shares_of_a_sequence(changes: dict[str, object]) -> None:
    """Planned recomputation runs each layer once on the ranks that the scenario has, and on no others."""
    training = {"global_batch_size": 16, "micro_batch_size": 1, "precision": "fp32"}
    scenario = {
        "version": 1,
        "cluster": {
            "preset": "uniform",
            "gpus": 8,
            "hosts": 2,
            "bandwidth": "30 GB/s",
            "latency": "5 us",
            "accelerator": "a100_80gb",
        },
        "model": {"preset": "gpt2", "num_layers": 4, "attention": "flash"},
        "training": {**training, "recompute": {"method": "optimal", "budget": "8 GB"}},
    }
    planned = Scenario.model_validate(scenario).changed(changes, "test").run().summary()
    scenario["training"] = training
    assert (
        planned["step_time_s"]
        == Scenario.model_validate(scenario).changed(changes, "test").run().summary()["step_time_s"]
    )


@pytest.mark.exhaustive
def test_what_is_only_checked_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(simulation: SimulationRun) -> None:
        raise AssertionError("a check simulates")

    monkeypatch.setattr(SimulationRun, "run", refuse)
    monkeypatch.setattr(Programme, "__init__", refuse)
    for name in ("gpt2_xl_offload_8a100", "optimal_recompute_gpt2_xl"):
        assert run(["check", name]) == 0


def test_a_plan_that_a_check_takes_fits_where_the_fastest_one_does() -> None:
    """A check takes sequences with few activations; a run's need more, but never more than the budget."""
    scenario = Scenario.load("optimal_recompute_gpt2_xl").variants["3.5 GB"]
    few, fast = (memory_need(scenario, schedule) for schedule in (scenario.checked_schedule(), scenario.schedule()))
    assert few.nbytes <= fast.nbytes
    assert few.fits
    assert fast.fits
