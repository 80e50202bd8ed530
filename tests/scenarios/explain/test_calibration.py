"""`explain --calibrate`: the measured products and collectives become a file that scenarios take."""

from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.exchange.export import write
from clustersim.scenarios.exchange.exporting.kineto import kineto
from clustersim.scenarios.real_traces.run import run_of
from clustersim.simulator.reading.yaml_and_json import read

TRACES = Path(__file__).parent / "traces"
RECORDED = Path(__file__).parents[3] / "scenarios" / "traced" / "ddp_sleep"


def test_a_simulated_network_is_found_again(tmp_path, capsys):
    scenario = Scenario.load("hello")
    write(kineto(scenario), tmp_path / "traces")
    assert run(["explain", str(tmp_path / "traces"), "--calibrate", str(tmp_path / "cal.yaml")]) == 0
    cal = str(tmp_path / "cal.yaml")
    again = scenario.changed({"cluster": {"preset": cal, "accelerator": "unit"}, "network.transport": cal}, "found")
    assert again.run().timeline.step_time == pytest.approx(scenario.run().timeline.step_time, rel=0.01)
    assert "next: clustersim run SCENARIO --set network.transport=" in capsys.readouterr().out


def test_an_accelerator_from_products(tmp_path, capsys):
    path = tmp_path / "cal.yaml"
    assert run(["explain", str(TRACES / "h100_gpt2_compiled.json.gz"), "--calibrate", str(path)]) == 0
    data = read(path).data
    assert data["accelerator"]["preset"] == "h100"
    assert 0.5 < data["accelerator"]["matmul_efficiency"] <= 1.0
    report = capsys.readouterr().out
    assert "8192 x 3072 x 768" in report
    # the file is taken by scenarios of that GPU
    taken = Scenario.load("llama3_8b_fsdp_dgx_h100", {"cluster.node.accelerator": str(path)})
    gpu = taken.cluster().gpus[0]
    assert taken.cluster().accelerator(gpu).matmul_efficiency == data["accelerator"]["matmul_efficiency"]


def test_products_and_collectives_of_gloo_ranks(tmp_path):
    run(["explain", str(RECORDED), "--calibrate", str(tmp_path / "cal.yaml")])
    data = read(tmp_path / "cal.yaml").data
    assert data["library"] == "gloo"
    assert data["cluster"]["gpus"] == 4
    assert data["provenance"]["products"] == 10
    assert data["uncertainty"]["accelerator.peak_flops.fp32"] < 0.1


def test_a_trace_without_shapes_and_sizes_is_refused(tmp_path, capsys):
    write(kineto(Scenario.load("hello", {"cluster.gpus": 1})), tmp_path / "traces")
    assert run_of([tmp_path / "traces"]).world_size == 1
    assert run(["explain", str(tmp_path / "traces"), "--calibrate", str(tmp_path / "cal.yaml")]) == 2
    assert "neither matrix products with shapes nor collectives with sizes" in capsys.readouterr().err
    assert not (tmp_path / "cal.yaml").exists()
